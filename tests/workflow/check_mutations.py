"""Does a fault in a mechanism make its tests fail, and the one that speaks of it? Each is tried in a copy.

Prints a table: fault, first failing test. The untouched copy must pass, or a failure would say nothing.
INFERENCE_LAB_FAULTS=text tries only the faults whose name has this text.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SINGLE_HEAD = tuple(
    f"tests.mechanisms.test_{name}" for name in ("attention_oracle", "attention_caches", "attention_contract")
)
HEADS = tuple(
    f"tests.mechanisms.test_{name}" for name in ("multi_head", "multi_head_cached", "kv_cache", "kv_capacity")
)
FAILED = re.compile(r"^(?:FAIL|ERROR): (\w+) \(tests\.([\w.]+)\)", re.MULTILINE)


class Fault(NamedTuple):
    """One wrong edit: `old` is once in the module, `new` takes its place; `test` must fail, "" is any."""

    name: str
    old: str
    new: str
    test: str
    module: str = "multi_head"


ATTEND = "    output, weights = attention.attend(q.reshape(B, G, group * T, D), k, v, sees)\n"
OF_SINGLE_HEAD = (
    # Named in the acceptance of the mechanism.
    Fault("softmax over the wrong axis: full",
          "_softmax(scores, axis=-1)", "_softmax(scores, axis=-2)",
          "", "attention"),
    Fault("softmax over the wrong axis: cached",
          "np.maximum.reduce(scores, axis=-1, keepdims=True, out=row)",
          "np.maximum.reduce(scores, axis=0, keepdims=True)",
          "", "attention"),
    Fault("softmax sum over the wrong axis: cached",
          "np.add.reduce(exponentials, axis=-1, keepdims=True, out=row)",
          "np.add.reduce(exponentials, axis=0, keepdims=True)[..., :1]",
          "", "attention"),
    Fault("scale missing: full",
          " / math.sqrt(q.shape[-1])", "",
          "", "attention"),
    Fault("scale missing: cached",
          "wq * (1 / math.sqrt(wq.shape[1]))", "wq",
          "", "attention"),
    Fault("mask off by one: looks ahead",
          "np.tri(T, dtype=bool)", "np.tri(T, k=1, dtype=bool)",
          "", "attention"),
    Fault("mask off by one: misses itself",
          "np.tri(T, dtype=bool)", "np.tri(T, k=-1, dtype=bool) | np.eye(T, 1, dtype=bool)",
          "", "attention"),
    Fault("cache slot off by one: written",
          "self._key_slots[..., self.length : end, :] = k",
          "self._key_slots[..., self.length - 1 : end - 1, :] = k",
          "", "kv_cache"),
    Fault("cache slot off by one: value",
          "self._value_slots[..., self.length : end, :] = v",
          "self._value_slots[..., self.length - 1 : end - 1, :] = v",
          "", "kv_cache"),
    Fault("cache slot off by one: read",
          "self._all_keys[..., :end, :], self._all_values[..., :end, :]",
          "self._all_keys[..., :end, :], np.roll(self._all_values, 1, axis=-2)[..., :end, :]",
          "", "kv_cache"),
    Fault("stale slot not overwritten",
          "        self._key_slots[..., self.length : end, :] = k\n",
          "        self.used = getattr(self, 'used', 0)\n"
          "        if self.length >= self.used:\n"
          "            self._key_slots[..., self.length : end, :] = k\n"
          "            self.used = end\n",
          "", "kv_cache"),
    Fault("stale slot added to",
          "self._value_slots[..., self.length : end, :] = v",
          "self._value_slots[..., self.length : end, :] += v",
          "", "kv_cache"),
    Fault("batch rows mixed: full",
          "return weights @ v, weights", "return weights @ np.flip(v, 0), weights",
          "", "attention"),
    Fault("batch rows mixed: cached",
          "self._key_slots[..., self.length : end, :] = k",
          "self._key_slots[..., self.length : end, :] = k[:1]",
          "", "kv_cache"),
    Fault("dynamic cache aliases its input",
          "self.keys = np.concatenate((self.keys, k), axis=-2)",
          "self.keys = np.concatenate((self.keys, k), axis=-2) if self.length else k[...]",
          "", "kv_cache"),
    Fault("last query only where the whole prefix was asked",
          "_attend(prefix @ wq, prefix @ wk, prefix @ wv, mask[: t + 1, : t + 1])",
          "_attend(prefix[..., -1:, :] @ wq, prefix @ wk, prefix @ wv, mask[t, : t + 1])",
          "", "attention"),
    # The traps of single-head kernels.
    Fault("no row maximum: full",
          "x - x.max(axis, keepdims=True)", "x",
          "", "attention"),
    Fault("one maximum for all rows: full",
          "x - x.max(axis, keepdims=True)", "x - x.max()",
          "", "attention"),
    Fault("one maximum for all rows: cached",
          "np.maximum.reduce(scores, axis=-1, keepdims=True, out=row)", "scores.max()",
          "", "attention"),
    Fault("float32 widened by np.sqrt",
          "math.sqrt(q.shape[-1])", "np.sqrt(q.shape[-1])",
          "", "attention"),
    Fault("division by the sum missing",
          "output /= np.add.reduce", "np.add.reduce",
          "", "attention"),
    Fault("an unwritten slot is read",
          "self._all_keys[..., :end, :], self._all_values[..., :end, :]",
          "self._all_keys[..., :end, :], self._all_values[..., : end + 1, :][..., -end:, :]",
          "", "kv_cache"),
    Fault("whole sequence projected ahead",
          "np.matmul(x[..., t, :], w_qkv, out=newest)", "newest[...] = (x @ w_qkv)[..., t, :]",
          "", "attention"),
    Fault("cached cache kept for the next decode",
          "    cache = kind(x.shape[:-1], wk.shape[1], wv.shape[1], x.dtype)\n",
          "    key = (kind, x.shape[:-1], wk.shape[1], wv.shape[1], x.dtype)\n"
          "    cache = globals().setdefault('_kept', {}).setdefault(key, kind(*key[1:]))\n"
          "    if kind is PreallocatedCache:\n"
          "        cache.reset()\n",
          "", "attention"),
    Fault("inputs not checked for finite values",
          "if not finite.all():", "if False:",
          "", "arrays"),
    Fault("checks only without -O",
          "    check_inputs(x, wq, wk, wv)\n    return no_cache(x",
          "    if __debug__:\n        check_inputs(x, wq, wk, wv)\n    return no_cache(x",
          "", "attention"),
    Fault("check by assert",
          "    if cache not in CACHES:\n        raise InputError(", "    assert cache in CACHES, (",
          "", "attention"),
)  # fmt: skip
OF_HEADS = (
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
          "self._key_slots[..., self.length : end, :] = k",
          "start = max(self.length - 1, 0)\n        self._key_slots[..., start : start + k.shape[-2], :] = k",
          "test_every_slot_of_the_cache_at_every_step", "kv_cache"),
    Fault("append to the wrong slot: keys alone, from the end",
          "self._key_slots[..., self.length : end, :] = k",
          "self._key_slots[..., ::-1, :][..., self.length : end, :] = k",
          "test_every_slot_of_the_cache_at_every_step", "kv_cache"),
    Fault("append to the wrong slot: in front",
          "np.concatenate((self.values, v), axis=-2)", "np.concatenate((v, self.values), axis=-2)",
          "test_every_slot_of_the_cache_at_every_step", "kv_cache"),
    Fault("cache shared between sequences",
          "self._value_slots[..., self.length : end, :] = v",
          "self._value_slots[..., self.length : end, :] = v[:1]",
          "test_sequences_do_not_share_a_cache", "kv_cache"),
    Fault("cache shared between heads",
          "self._value_slots[..., self.length : end, :] = v",
          "self._value_slots[..., self.length : end, :] = v[:, :1]",
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
          "if new != self._one_token or", "if new[:2] != self._one_token[:2] or",
          "test_appends_that_do_not_fit", "kv_cache"),
    Fault("capacity not checked",
          "if self.length + T > self.capacity:", "if False:",
          "test_no_room", "kv_cache"),
    Fault("reset forgets nothing",
          "        self.length = length\n        self.keys", "        self.keys",
          "test_nothing_old_is_seen_after_a_reset", "kv_cache"),
    Fault("a cache that can be written through its views",
          "view.setflags(write=False)", "view.setflags(write=True)",
          "test_nobody_writes_through_what_was_handed_out", "kv_cache"),
    Fault("dynamic cache aliases its input",
          "self.values = np.concatenate((self.values, v), axis=-2)",
          "self.values = np.concatenate((self.values, v), axis=-2) if self.length else v[...]",
          "test_any_history", "kv_cache"),
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
    Fault("keys never stored as columns: preallocated",
          "(*leading, D, slots) if columns else (*leading, slots, D)", "(*leading, slots, D)",
          "test_columns_lie_in_memory_as_a_product_reads_them", "kv_cache"),
    Fault("keys never stored as columns: dynamic",
          "        if self._columns:\n", "        if False:\n",
          "test_columns_lie_in_memory_as_a_product_reads_them", "kv_cache"),
)  # fmt: skip


class FaultsAreFoundTest(unittest.TestCase):
    """Every fault fails a test; the source without a fault fails none."""

    def setUp(self) -> None:
        """A copy of the package, outside the checkout."""
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.package = self.folder / "inference_lab"
        source = ROOT / "src" / "inference_lab"
        shutil.copytree(source, self.package, ignore=shutil.ignore_patterns("__pycache__"))

    def outcome(self, *options: str) -> subprocess.CompletedProcess[str]:
        """What Python does with these options, and with the copy as the package."""
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(self.folder), str(ROOT))),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.run(
            [sys.executable, *options], cwd=ROOT, env=variables, capture_output=True, text=True,
            check=False, timeout=300,
        )  # fmt: skip

    def test_the_copy_is_what_is_tested_and_passes(self) -> None:
        """The copy of the source is what the tests import, and it passes unchanged."""
        show = "import inference_lab.mechanisms.attention as a; print(a.__file__)"
        where = self.outcome("-c", show)
        self.assertEqual(Path(where.stdout.strip()), self.package / "mechanisms/attention.py", where.stderr)
        whole = self.outcome("-m", "unittest", *SINGLE_HEAD, *HEADS)
        self.assertEqual(whole.returncode, 0, whole.stderr)

    def test_every_fault_fails_its_test(self) -> None:
        """Each fault put into the copy fails the test that is to find it."""
        for faults, tests in ((OF_SINGLE_HEAD, SINGLE_HEAD), (OF_HEADS, HEADS)):
            for fault in faults:
                if os.environ.get("INFERENCE_LAB_FAULTS", "") in fault.name:
                    with self.subTest(fault.name):
                        self.assert_found(fault, tests)

    def assert_found(self, fault: Fault, tests: tuple[str, ...]) -> None:
        """The tests fail with this fault in the copy."""
        module = self.package / "mechanisms" / f"{fault.module}.py"
        right = module.read_text(encoding="utf-8")
        self.assertEqual(right.count(fault.old), 1, f"{fault.old!r} in {module.name}")
        module.write_text(right.replace(fault.old, fault.new), encoding="utf-8")
        try:
            done = self.outcome("-m", "unittest", *([] if fault.test else ["--failfast"]), *tests)
        finally:
            module.write_text(right, encoding="utf-8")
        failed = FAILED.findall(done.stderr)
        print(f"{fault.name:52} {failed[0][1] if failed else 'NOT FOUND'}", flush=True)
        self.assertTrue(failed, done.stderr[-2000:])
        if fault.test:
            self.assertIn(fault.test, {name for name, _ in failed}, "the tests that failed")


if __name__ == "__main__":
    unittest.main()
