"""Does a fault in heads, caches or capacity make the test that speaks of it fail? Each is tried in a copy.

Prints a table: fault, first failing test. Each fault names the test that must be among those that fail.
"""

import shutil
import tempfile
import unittest
from dataclasses import dataclass
from pathlib import Path

from tests.workflow.check_mutations_attention import FAILED, ROOT, outcome

TESTS = (
    "tests.mechanisms.test_multi_head",
    "tests.mechanisms.test_multi_head_cached",
    "tests.mechanisms.test_kv_capacity",
)


@dataclass(frozen=True)
class Fault:
    """One wrong edit: `old` stands exactly once in the module, `new` takes its place, `test` must fail."""

    name: str
    old: str
    new: str
    test: str
    module: str = "multi_head"


ATTEND = "    output, weights = attention.attend(q.reshape(B, G, group * T, D), k, v, sees)\n"
FAULTS = (
    # Named in the acceptance of multi-head attention.
    Fault("heads and tokens swapped",
          "projected.reshape(B, T, num_heads, width // num_heads).swapaxes(1, 2)",
          "projected.reshape(B, num_heads, T, width // num_heads)",
          "test_every_coordinate_of_a_split"),
    Fault("tile for repeat in GQA: head h reads h % G", ATTEND,
          "    q = q.reshape(B, group, G, T, D).swapaxes(1, 2)\n" + ATTEND +
          "    output = output.reshape(B, G, group, T, D).swapaxes(1, 2)\n"
          "    weights = weights.reshape(B, G, group, T, S).swapaxes(1, 2)\n",
          "test_a_spike_is_read_by_its_own_group_alone"),
    Fault("softmax over heads",
          "_softmax(scores, axis=-1)", "_softmax(scores, axis=-3 if scores.ndim == 4 else -1)",
          "test_weights_sum_to_one_and_never_look_ahead", "attention"),
    Fault("mask off by one: looks ahead",
          "np.tri(T, S, S - T, dtype=bool)", "np.tri(T, S, S - T + 1, dtype=bool)",
          "test_future_tokens_are_invisible"),
    Fault("mask off by one: misses itself",
          "np.tri(T, S, S - T, dtype=bool)", "np.tri(T, S, max(S - T - 1, 0), dtype=bool)",
          "test_a_prompt_behind_cached_tokens"),
    Fault("mask as if nothing were cached",
          "np.tri(T, S, S - T, dtype=bool)", "np.tri(T, S, dtype=bool)",
          "test_a_prompt_behind_cached_tokens"),
    Fault("scale by √C instead of √D", ATTEND, ATTEND.replace("T, D)", "T, D) / H**0.5"),
          "test_meets_the_scalar_oracle"),
    Fault("append to the wrong slot: over the newest",
          "new = slice(self.length, self.length + k.shape[2])",
          "start = max(self.length - 1, 0)\n        new = slice(start, start + k.shape[2])",
          "test_every_slot_of_the_cache_at_every_step", "kv_cache"),
    Fault("append to the wrong slot: keys alone, from the end",
          "self._keys[..., new] = k.swapaxes(2, 3)",
          "self._keys[..., ::-1][..., new] = k.swapaxes(2, 3)",
          "test_every_slot_of_the_cache_at_every_step", "kv_cache"),
    Fault("append to the wrong slot: in front",
          "[self._values[:, :, kept], v]", "[v, self._values[:, :, kept]]",
          "test_every_slot_of_the_cache_at_every_step", "kv_cache"),
    Fault("cache shared between sequences",
          "self._values[:, :, new] = v", "self._values[:, :, new] = v[:1]",
          "test_sequences_do_not_share_a_cache", "kv_cache"),
    Fault("cache shared between heads",
          "self._values[:, :, new] = v", "self._values[:, :, new] = v[:, :1]",
          "test_heads_do_not_share_a_cache", "kv_cache"),
    Fault("merge_heads transposed: no swap",
          "per_head.swapaxes(1, 2).reshape(B, T, H * D)", "per_head.reshape(B, T, H * D)",
          "test_every_coordinate_of_a_merge"),
    Fault("merge_heads transposed: width before head",
          "per_head.swapaxes(1, 2).reshape(B, T, H * D)",
          "per_head.transpose(0, 2, 3, 1).reshape(B, T, H * D)",
          "test_every_coordinate_of_a_merge"),
    # Traps of heads and caches.
    Fault("keys and values repeated in memory", ATTEND,
          "    k, v = (np.repeat(array, group, axis=1) for array in (k, v))\n"
          "    sees = None if sees is None else sees[:T]\n"
          "    output, weights = attention.attend(q, k, v, sees)\n",
          "test_keys_and_values_are_not_repeated_in_memory"),
    Fault("one maximum for all rows",
          "x - x.max(axis, keepdims=True)", "x - x.max()",
          "test_large_scores_stay_finite", "attention"),
    Fault("a row of another dtype rounded into the cache",
          "if dtype != self._keys.dtype:", "if False:",
          "test_refusals_name_the_rule_and_keep_the_cache", "kv_cache"),
    Fault("capacity not checked",
          "if self.length + shape[2] > capacity:", "if False:",
          "test_no_room", "kv_cache"),
    Fault("reset forgets nothing",
          "        self.length = length\n", "",
          "test_nothing_old_is_seen_after_a_reset", "kv_cache"),
    Fault("a cache that can be written through its views",
          "view.flags.writeable = False", "view.flags.writeable = True",
          "test_views_handed_out_are_read_only", "kv_cache"),
    Fault("dynamic cache aliases its input",
          "[self._values[:, :, kept], v], axis=2)",
          "[self._values[:, :, kept], v], axis=2) if self.length else v",
          "test_arguments_are_left_alone_and_not_kept", "kv_cache"),
    # The fast forms.
    Fault("prefill: looks ahead within a block",
          "-np.inf, q.dtype), 1)", "-np.inf, q.dtype), 2)",
          "test_blocks_of_queries_equal_the_textbook"),
    Fault("prefill: a block misses its newest keys",
          "rows, seen = end - start, S - T + end", "rows, seen = end - start, max(S - T + end - 1, 1)",
          "test_blocks_of_queries_equal_the_textbook"),
    Fault("prefill: heads beyond the first few forgotten",
          "for g in range(0, G, some)", "for g in range(0, 1, some)",
          "test_blocks_of_queries_equal_the_textbook"),
    Fault("fast form: scale of the whole width",
          "1 / math.sqrt(wq.shape[1] // num_heads)", "1 / math.sqrt(wq.shape[1])",
          "test_prefill_of_any_length_then_decode"),
    Fault("fast form: no row maximum",
          "scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)", "pass",
          "test_logits_of_ten_thousand"),
    Fault("decode: the last block of positions forgotten",
          "for block in blocks[1:]:", "for block in blocks[1:-1]:",
          "test_blocks_of_positions_equal_the_textbook"),
    Fault("decode: one product over all positions",
          "size = _MULTIPLY_ADDS // (group * D) or 1", "size = S",
          "test_a_product_stays_below_what_blas_copies"),
    Fault("H not a multiple of G accepted",
          "if num_heads % num_kv_heads:", "if False:",
          "test_each_violation_has_its_own_message"),
    Fault("a width that does not split accepted",
          "        if width % heads:", "        if False:",
          "test_each_violation_has_its_own_message"),
    Fault("values forgotten in the bytes of a token",
          "return 2 * self.num_layers", "return self.num_layers",
          "test_equals_the_bytes_of_real_caches", "kv_capacity"),
    Fault("last block of a sequence not counted",
          "return -(-sequence_length // self.block_size)", "return sequence_length // self.block_size or 1",
          "test_as_a_server_would_hand_blocks_out", "kv_capacity"),
)  # fmt: skip


class FaultsAreFoundTest(unittest.TestCase):
    """Every fault fails the test that speaks of it; the source without a fault fails none."""

    def setUp(self) -> None:
        """A copy of the package, outside the checkout."""
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.package = self.folder / "inference_lab"
        source = ROOT / "src" / "inference_lab"
        shutil.copytree(source, self.package, ignore=shutil.ignore_patterns("__pycache__"))

    def test_the_copy_passes(self) -> None:
        """The subprocess imports the copy, and without a fault every test passes."""
        show = "import inference_lab.mechanisms.multi_head as m; print(m.__file__)"
        where = outcome(self.folder, "-c", show)
        self.assertEqual(Path(where.stdout.strip()), self.package / "mechanisms/multi_head.py", where.stderr)
        whole = outcome(self.folder, "-m", "unittest", *TESTS)
        self.assertEqual(whole.returncode, 0, whole.stderr)

    def test_every_fault_fails_its_test(self) -> None:
        """Each fault, alone in the copy, is found by the test named beside it."""
        for fault in FAULTS:
            module = self.package / "mechanisms" / f"{fault.module}.py"
            right = module.read_text(encoding="utf-8")
            with self.subTest(fault.name):
                self.assertEqual(right.count(fault.old), 1, f"{fault.old!r} in {module.name}")
                module.write_text(right.replace(fault.old, fault.new), encoding="utf-8")
                try:
                    done = outcome(self.folder, "-m", "unittest", *TESTS)
                finally:
                    module.write_text(right, encoding="utf-8")
                failed = FAILED.findall(done.stderr)
                print(f"{fault.name:50} {failed[0][1] if failed else 'NOT FOUND'}", flush=True)
                self.assertIn(fault.test, {name for name, _ in failed}, "the tests that failed")


if __name__ == "__main__":
    unittest.main()
