"""Does a fault in the mechanism make its tests fail? Each is put into a copy of the source and tried.

Prints a table: fault, first failing test. The untouched copy must pass, or a failure would say nothing.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    "tests.mechanisms.test_attention_oracle",
    "tests.mechanisms.test_attention_caches",
    "tests.mechanisms.test_attention_contract",
)
FAILED = re.compile(r"^(?:FAIL|ERROR): (\w+) \(tests\.([\w.]+)\)", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """One wrong edit: `old` stands exactly once in the module, `new` takes its place."""

    name: str
    module: str
    old: str
    new: str


FAULTS = (
    # Named in the acceptance of the mechanism.
    Fault("softmax over the wrong axis: full", "attention",
          "_softmax(scores, axis=-1)", "_softmax(scores, axis=-2)"),
    Fault("softmax over the wrong axis: cached", "attention",
          "np.maximum.reduce(scores, axis=-1, keepdims=True, out=row)",
          "np.maximum.reduce(scores, axis=0, keepdims=True)"),
    Fault("softmax sum over the wrong axis: cached", "attention",
          "np.add.reduce(exponentials, axis=-1, keepdims=True, out=row)",
          "np.add.reduce(exponentials, axis=0, keepdims=True)[..., :1]"),
    Fault("scale missing: full", "attention", " / math.sqrt(q.shape[-1])", ""),
    Fault("scale missing: cached", "attention", "wq * (1 / math.sqrt(wq.shape[1]))", "wq"),
    Fault("mask off by one: looks ahead", "attention",
          "np.tri(T, dtype=bool)", "np.tri(T, k=1, dtype=bool)"),
    Fault("mask off by one: misses itself", "attention",
          "np.tri(T, dtype=bool)", "np.tri(T, k=-1, dtype=bool) | np.eye(T, 1, dtype=bool)"),
    Fault("cache slot off by one: written", "kv_cache",
          "self._keys[..., self.length, :] = k", "self._keys[..., self.length - 1, :] = k"),
    Fault("cache slot off by one: value", "kv_cache",
          "self._values[..., self.length, :] = v", "self._values[..., self.length - 1, :] = v"),
    Fault("cache slot off by one: read", "kv_cache",
          "return self._values[..., : self.length, :]",
          "return np.roll(self._values, 1, axis=-2)[..., : self.length, :]"),
    Fault("stale slot not overwritten", "kv_cache",
          "            self._keys[..., self.length, :] = k\n",
          "            self.used = getattr(self, 'used', 0)\n"
          "            if self.length >= self.used:\n"
          "                self._keys[..., self.length, :] = k\n"
          "                self.used += 1\n"),
    Fault("stale slot added to", "kv_cache",
          "self._values[..., self.length, :] = v", "self._values[..., self.length, :] += v"),
    Fault("batch rows mixed: full", "attention",
          "return weights @ v, weights", "return weights @ np.flip(v, 0), weights"),
    Fault("batch rows mixed: cached", "kv_cache",
          "self._keys[..., self.length, :] = k", "self._keys[..., self.length, :] = k[:1]"),
    Fault("batch rows mixed: sequential", "attention",
          "path(x[b], wq, wk, wv)", "path(x[tuple(0 * i for i in b)], wq, wk, wv)"),
    Fault("dynamic cache aliases its input", "kv_cache",
          "keys = np.concatenate((self.keys, k[..., None, :]), axis=-2)",
          "keys = np.concatenate((self.keys, k[..., None, :]), axis=-2)"
          " if self.length else k[..., None, :]"),
    Fault("last query only where the whole prefix was asked", "attention",
          "_attend(prefix @ wq, prefix @ wk, prefix @ wv, mask[: t + 1, : t + 1])",
          "_attend(prefix[..., -1:, :] @ wq, prefix @ wk, prefix @ wv, mask[t, : t + 1])"),
    # The traps of single-head kernels.
    Fault("no row maximum: full", "attention", "x - x.max(axis, keepdims=True)", "x"),
    Fault("one maximum for all rows: full", "attention",
          "x - x.max(axis, keepdims=True)", "x - x.max()"),
    Fault("one maximum for all rows: cached", "attention",
          "np.maximum.reduce(scores, axis=-1, keepdims=True, out=row)", "scores.max()"),
    Fault("float32 widened by np.sqrt", "attention",
          "math.sqrt(q.shape[-1])", "np.sqrt(q.shape[-1])"),
    Fault("division by the sum missing", "attention",
          "output /= np.add.reduce", "np.add.reduce"),
    Fault("an unwritten slot is read", "kv_cache",
          "return self._values[..., : self.length, :]",
          "return self._values[..., : self.length + 1, :][..., -self.length :, :]"),
    Fault("whole sequence projected ahead", "attention",
          "np.matmul(x[..., t, :], w_qkv, out=qkv)", "qkv[...] = (x @ w_qkv)[..., t, :]"),
    Fault("cached cache kept for the next decode", "attention",
          "    return kind(x.shape[:-1], wk.shape[1], wv.shape[1], x.dtype)",
          "    key = (kind, x.shape[:-1], wk.shape[1], wv.shape[1], x.dtype)\n"
          "    kept = globals().setdefault('_kept', {}).setdefault(key, kind(*key[1:]))\n"
          "    if kind is PreallocatedCache:\n"
          "        kept.length = 0\n"
          "    return kept"),
    Fault("inputs not checked for finite values", "arrays",
          "if not finite.all():", "if False:"),
    Fault("checks only without -O", "attention",
          "    check_inputs(x, wq, wk, wv)\n    return no_cache(x",
          "    if __debug__:\n        check_inputs(x, wq, wk, wv)\n    return no_cache(x"),
    Fault("check by assert", "attention",
          "    if cache not in CACHES:\n        raise InputError(", "    assert cache in CACHES, ("),
)  # fmt: skip


def outcome(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The tests of attention run against the package in `folder`."""
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [sys.executable, *options], cwd=ROOT, env=variables, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip


class FaultsAreFoundTest(unittest.TestCase):
    """Every fault fails a test; the source without a fault fails none."""

    def setUp(self) -> None:
        """A copy of the package, outside the checkout."""
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.package = self.folder / "inference_lab"
        source = ROOT / "src" / "inference_lab"
        shutil.copytree(source, self.package, ignore=shutil.ignore_patterns("__pycache__"))

    def test_the_copy_is_what_is_tested_and_passes(self) -> None:
        """The subprocess imports the copy, and without a fault every test passes."""
        where = outcome(
            self.folder, "-c", "import inference_lab.mechanisms.attention as a; print(a.__file__)"
        )
        self.assertEqual(Path(where.stdout.strip()), self.package / "mechanisms/attention.py", where.stderr)
        whole = outcome(self.folder, "-m", "unittest", *TESTS)
        self.assertEqual(whole.returncode, 0, whole.stderr)

    def test_every_fault_fails_a_test(self) -> None:
        """Each fault, alone in the copy, is found."""
        for fault in FAULTS:
            module = self.package / "mechanisms" / f"{fault.module}.py"
            right = module.read_text(encoding="utf-8")
            with self.subTest(fault.name):
                self.assertEqual(right.count(fault.old), 1, f"{fault.old!r} in {module.name}")
                module.write_text(right.replace(fault.old, fault.new), encoding="utf-8")
                try:
                    done = outcome(self.folder, "-m", "unittest", "--failfast", *TESTS)
                finally:
                    module.write_text(right, encoding="utf-8")
                first = FAILED.search(done.stderr)
                print(f"{fault.name:52} {f'{first[2]}' if first else 'NOT FOUND'}", flush=True)
                self.assertNotEqual(done.returncode, 0, "the tests passed")
                self.assertIsNotNone(first, done.stderr)


if __name__ == "__main__":
    unittest.main()
