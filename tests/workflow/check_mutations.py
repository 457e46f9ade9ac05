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

from tests.checkout import ROOT

SINGLE_HEAD = ("attention_oracle", "attention_caches", "attention_contract")
HEADS = ("multi_head", "multi_head_cached", "kv_cache", "kv_capacity")
FAILED = re.compile(r"^(?:FAIL|ERROR): (\w+) \(tests\.([\w.]+)\)", re.MULTILINE)


# What several faults replace.
ATTEND = "    output, weights = attention.attend(q.reshape(B, G, group * T, D), k, v, sees)\n"
KEYS = "self._key_slots[..., self.length : end, :] = k"
VALUES = "self._value_slots[..., self.length : end, :] = v"
MASK = "np.tri(T, S, S - T, dtype=bool)"
READ = "self._all_keys[..., :end, :], self._all_values[..., :end, :]"
MERGE = "per_head.swapaxes(1, 2).reshape(B, T, H * D)"
SHIFTED = "x - x.max(axis, keepdims=True)"
# By tests and module: name of a fault, text that is once in the module, what takes its place, and the test
# that must fail (any where none is named).
# fmt: off
FAULTS: dict[tuple[tuple[str, ...], str], list[tuple[str, ...]]] = {
    (SINGLE_HEAD, "attention"): [
        ("softmax over the wrong axis: full", "_softmax(scores, axis=-1)", "_softmax(scores, axis=-2)"),
        ("softmax over the wrong axis: cached", "np.maximum.reduce(scores, axis=-1, keepdims=True, out=row)",
         "np.maximum.reduce(scores, axis=0, keepdims=True)"),
        ("softmax sum over the wrong axis: cached",
         "np.add.reduce(exponentials, axis=-1, keepdims=True, out=row)",
         "np.add.reduce(exponentials, axis=0, keepdims=True)[..., :1]"),
        ("scale missing: full", " / math.sqrt(q.shape[-1])", ""),
        ("scale missing: cached", "wq * (1 / math.sqrt(wq.shape[1]))", "wq"),
        ("mask off by one: looks ahead", "np.tri(T, dtype=bool)", "np.tri(T, k=1, dtype=bool)"),
        ("mask off by one: misses itself", "np.tri(T, dtype=bool)",
         "np.tri(T, k=-1, dtype=bool) | np.eye(T, 1, dtype=bool)"),
        ("batch rows mixed: full", "return weights @ v, weights", "return weights @ np.flip(v, 0), weights"),
        ("last query only where the whole prefix was asked",
         "_attend(prefix @ wq, prefix @ wk, prefix @ wv, mask[: t + 1, : t + 1])",
         "_attend(prefix[..., -1:, :] @ wq, prefix @ wk, prefix @ wv, mask[t, : t + 1])"),
        ("no row maximum: full", SHIFTED, "x"),
        ("one maximum for all rows: full", SHIFTED, "x - x.max()"),
        ("one maximum for all rows: cached", "np.maximum.reduce(scores, axis=-1, keepdims=True, out=row)",
         "scores.max()"),
        ("float32 widened by np.sqrt", "math.sqrt(q.shape[-1])", "np.sqrt(q.shape[-1])"),
        ("division by the sum missing", "output /= np.add.reduce", "np.add.reduce"),
        ("whole sequence projected ahead", "np.matmul(x[..., t, :], w_qkv, out=newest)",
         "newest[...] = (x @ w_qkv)[..., t, :]"),
        ("cached cache kept for the next decode",
         "    cache = kind(x.shape[:-1], wk.shape[1], wv.shape[1], x.dtype)\n",
         "    key = (kind, x.shape[:-1], wk.shape[1], wv.shape[1], x.dtype)\n"
         "    cache = globals().setdefault('_kept', {}).setdefault(key, kind(*key[1:]))\n"
         "    if kind is PreallocatedCache:\n" "        cache.reset()\n"),
        ("checks only without -O", "    check_inputs(x, wq, wk, wv)\n    return no_cache(x",
         "    if __debug__:\n        check_inputs(x, wq, wk, wv)\n    return no_cache(x"),
        ("check by assert", "    if cache not in CACHES:\n        raise InputError(",
         "    assert cache in CACHES, ("),
    ],
    (SINGLE_HEAD, "kv_cache"): [
        ("cache slot off by one: written", KEYS, "self._key_slots[..., self.length - 1 : end - 1, :] = k"),
        ("cache slot off by one: value", VALUES, "self._value_slots[..., self.length - 1 : end - 1, :] = v"),
        ("cache slot off by one: read", READ,
         "self._all_keys[..., :end, :], np.roll(self._all_values, 1, axis=-2)[..., :end, :]"),
        ("stale slot not overwritten", "        self._key_slots[..., self.length : end, :] = k\n",
         "        self.used = getattr(self, 'used', 0)\n" "        if self.length >= self.used:\n"
         "            self._key_slots[..., self.length : end, :] = k\n" "            self.used = end\n"),
        ("stale slot added to", VALUES, "self._value_slots[..., self.length : end, :] += v"),
        ("batch rows mixed: cached", KEYS, "self._key_slots[..., self.length : end, :] = k[:1]"),
        ("dynamic cache aliases its input", "self.keys = np.concatenate((self.keys, k), axis=-2)",
         "self.keys = np.concatenate((self.keys, k), axis=-2) if self.length else k[...]"),
        ("an unwritten slot is read", READ,
         "self._all_keys[..., :end, :], self._all_values[..., : end + 1, :][..., -end:, :]"),
    ],
    (SINGLE_HEAD, "arrays"): [
        ("inputs not checked for finite values", "if not finite.all():", "if False:"),
    ],
    (HEADS, "multi_head"): [
        ("heads and tokens swapped", "projected.reshape(B, T, num_heads, width // num_heads).swapaxes(1, 2)",
         "projected.reshape(B, num_heads, T, width // num_heads)", "test_every_coordinate_of_a_split"),
        ("tile for repeat in GQA: head h reads h % G", ATTEND,
         "    q = q.reshape(B, group, G, T, D).swapaxes(1, 2)\n" + ATTEND +
         "    output = output.reshape(B, G, group, T, D).swapaxes(1, 2)\n"
         "    weights = weights.reshape(B, G, group, T, S).swapaxes(1, 2)\n",
         "test_a_spike_is_read_by_its_own_group_alone"),
        ("mask off by one: looks ahead", MASK, "np.tri(T, S, S - T + 1, dtype=bool)",
         "test_future_tokens_are_invisible"),
        ("mask off by one: misses itself", MASK, "np.tri(T, S, max(S - T - 1, 0), dtype=bool)",
         "test_a_prompt_behind_cached_tokens"),
        ("mask as if nothing were cached", MASK, "np.tri(T, S, dtype=bool)",
         "test_a_prompt_behind_cached_tokens"),
        ("scale by √C instead of √D", ATTEND, ATTEND.replace("T, D)", "T, D) / H**0.5"),
         "test_meets_the_scalar_oracle"),
        ("merge_heads transposed: no swap", MERGE, "per_head.reshape(B, T, H * D)",
         "test_every_coordinate_of_a_merge"),
        ("merge_heads transposed: width before head", MERGE,
         "per_head.transpose(0, 2, 3, 1).reshape(B, T, H * D)", "test_every_coordinate_of_a_merge"),
        ("keys and values repeated in memory", ATTEND,
         "    k, v = (np.repeat(array, group, axis=1) for array in (k, v))\n"
         "    sees = None if sees is None else sees[:T]\n"
         "    output, weights = attention.attend(q, k, v, sees)\n",
         "test_keys_and_values_are_not_repeated_in_memory"),
        ("prefill: looks ahead within a block", "-np.inf, q.dtype), 1)", "-np.inf, q.dtype), 2)",
         "test_blocks_of_queries_equal_the_textbook"),
        ("prefill: a block misses its newest keys", "rows, seen = end - start, S - T + end",
         "rows, seen = end - start, max(S - T + end - 1, 1)", "test_blocks_of_queries_equal_the_textbook"),
        ("prefill: heads beyond the first few forgotten", "for g in range(0, G, some)",
         "for g in range(0, 1, some)", "test_blocks_of_queries_equal_the_textbook"),
        ("fast form: scale of the whole width", "1 / math.sqrt(wq.shape[1] // num_heads)",
         "1 / math.sqrt(wq.shape[1])", "test_prefill_of_any_length_then_decode"),
        ("fast form: no row maximum", "scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)", "pass",
         "test_logits_of_ten_thousand"),
        ("decode: the last block of positions forgotten", "for block in blocks[1:]:",
         "for block in blocks[1:-1]:", "test_blocks_of_positions_equal_the_textbook"),
        ("decode: one product over all positions", "size = _MULTIPLY_ADDS // (group * D) or 1", "size = S",
         "test_a_product_stays_below_what_blas_copies"),
        ("H not a multiple of G accepted", "if num_heads % num_kv_heads:", "if False:",
         "test_each_violation_has_its_own_message"),
        ("a width that does not split accepted", "        if width % heads:", "        if False:",
         "test_each_violation_has_its_own_message"),
    ],
    (HEADS, "attention"): [
        ("softmax over heads", "_softmax(scores, axis=-1)",
         "_softmax(scores, axis=-3 if scores.ndim == 4 else -1)",
         "test_weights_sum_to_one_and_never_look_ahead"),
        ("one maximum for all rows", SHIFTED, "x - x.max()", "test_large_scores_stay_finite"),
    ],
    (HEADS, "kv_cache"): [
        ("append to the wrong slot: over the newest", KEYS,
         "start = max(self.length - 1, 0)\n        self._key_slots[..., start : start + k.shape[-2], :] = k",
         "test_every_slot_of_the_cache_at_every_step"),
        ("append to the wrong slot: keys alone, from the end", KEYS,
         "self._key_slots[..., ::-1, :][..., self.length : end, :] = k",
         "test_every_slot_of_the_cache_at_every_step"),
        ("append to the wrong slot: in front", "np.concatenate((self.values, v), axis=-2)",
         "np.concatenate((v, self.values), axis=-2)", "test_every_slot_of_the_cache_at_every_step"),
        ("cache shared between sequences", VALUES, "self._value_slots[..., self.length : end, :] = v[:1]",
         "test_sequences_do_not_share_a_cache"),
        ("cache shared between heads", VALUES, "self._value_slots[..., self.length : end, :] = v[:, :1]",
         "test_heads_do_not_share_a_cache"),
        ("a row of another dtype rounded into the cache", "if new != self._one_token or",
         "if new[:2] != self._one_token[:2] or", "test_appends_that_do_not_fit"),
        ("capacity not checked", "if self.length + T > self.capacity:", "if False:", "test_no_room"),
        ("reset forgets nothing", "        self.length = length\n        self.keys", "        self.keys",
         "test_nothing_old_is_seen_after_a_reset"),
        ("a cache that can be written through its views", "view.setflags(write=False)",
         "view.setflags(write=True)", "test_nobody_writes_through_what_was_handed_out"),
        ("dynamic cache aliases its input", "self.values = np.concatenate((self.values, v), axis=-2)",
         "self.values = np.concatenate((self.values, v), axis=-2) if self.length else v[...]",
         "test_any_history"),
        ("keys never stored as columns: preallocated",
         "(*leading, D, slots) if columns else (*leading, slots, D)", "(*leading, slots, D)",
         "test_columns_lie_in_memory_as_a_product_reads_them"),
        ("keys never stored as columns: dynamic", "        if self._columns:\n", "        if False:\n",
         "test_columns_lie_in_memory_as_a_product_reads_them"),
    ],
    (HEADS, "kv_capacity"): [
        ("values forgotten in the bytes of a token", "return 2 * self.num_layers", "return self.num_layers",
         "test_equals_the_bytes_of_real_caches"),
        ("last block of a sequence not counted", "return -(-sequence_length // self.block_size)",
         "return sequence_length // self.block_size or 1", "test_as_a_server_would_hand_blocks_out"),
    ],
}
# fmt: on


def names(tests: tuple[str, ...]) -> list[str]:
    """The modules of these tests."""
    return [f"tests.mechanisms.test_{name}" for name in tests]


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
        whole = self.outcome("-m", "unittest", *names(SINGLE_HEAD + HEADS))
        self.assertEqual(whole.returncode, 0, whole.stderr)

    def test_every_fault_fails_its_test(self) -> None:
        """Each fault put into the copy fails the test that is to find it."""
        for (tests, module), faults in FAULTS.items():
            path = self.package / "mechanisms" / f"{module}.py"
            right = path.read_text(encoding="utf-8")
            for name, old, new, *test in faults:
                if os.environ.get("INFERENCE_LAB_FAULTS", "") in name:
                    with self.subTest(name):
                        self.assertEqual(right.count(old), 1, f"{old!r} in {path.name}")
                        path.write_text(right.replace(old, new), encoding="utf-8")
                        try:
                            self.assert_found(name, test, tests)
                        finally:
                            path.write_text(right, encoding="utf-8")

    def assert_found(self, name: str, test: list[str], tests: tuple[str, ...]) -> None:
        """The tests fail with this fault in the copy."""
        done = self.outcome("-m", "unittest", *([] if test else ["--failfast"]), *names(tests))
        failed = FAILED.findall(done.stderr)
        print(f"{name:52} {failed[0][1] if failed else 'NOT FOUND'}", flush=True)
        self.assertTrue(failed, done.stderr[-2000:])
        self.assertLessEqual(set(test), {found for found, _ in failed}, "the tests that failed")


if __name__ == "__main__":
    unittest.main()
