"""Ours beside PyTorch: what is refused without it, and what the limits beside both really do."""

import sys
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from inference_lab.config.experiments import load_config
from inference_lab.errors import MeasurementRefused
from inference_lab.experiments import kernels_peers
from inference_lab.stream_load.servers.vllm import VllmEnvironment

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = [f"kernels_peers_{kind}" for kind in ("full", "decode", "gqa", "prefill")]


class RefusalTest(unittest.TestCase):
    """One line that says what to do."""

    def test_without_torch_or_with_another_python(self) -> None:
        """What cannot be imported, or is of another Python, is refused before a process starts."""
        gone = mock.patch.dict(sys.modules, {"torch": None})
        with gone, self.assertRaisesRegex(MeasurementRefused, r"envs/vllm/install\.py"):
            kernels_peers.load_torch(1)
        other = VllmEnvironment(Path(), Path(), Path(), {"python": "3.9"})
        found = mock.patch.object(kernels_peers, "find_environment", return_value=other)
        with found, self.assertRaisesRegex(MeasurementRefused, r"for Python 3\.9, this is 3\."):
            kernels_peers.measure(mock.sentinel.section, lambda _, __: None)


class LimitsTest(unittest.TestCase):
    """The paths that no kernel can go below."""

    def test_products_have_the_multiply_adds(self) -> None:
        """gemm makes the multiply-adds it is given, to one row of 512 x 512."""
        for wanted in (1, 512**2, 3 * 512**3 + 7 * 512**2):
            made: list[int] = []

            def counted(a: Any, b: Any, out: Any, made: list[int] = made) -> None:
                made.append(a.shape[0] * a.shape[1] * b.shape[1])

            call = kernels_peers.gemm(wanted, np.float32)
            with mock.patch("numpy.matmul", side_effect=counted):
                call()
            self.assertLessEqual(abs(sum(made) - wanted), 512**2)

    def test_reading_takes_every_number(self) -> None:
        """The limit of reading takes every row of every array."""
        seen: list[int] = []
        call = kernels_peers.read([(6, 2), (6, 4)], np.float32)
        with mock.patch.object(np, "maximum") as maximum:
            maximum.reduce.side_effect = lambda lot: seen.append(lot.size) or 0.0
            call()
        self.assertEqual(seen, [6, 2, 6, 4])

    def test_sections_compare_all_paths_to_torch(self) -> None:
        """Each section has all five paths, PyTorch as baseline measured twice, and vLLM's pins."""
        config = load_config(ROOT / "config.yaml").given()
        for name in SECTIONS:
            measured = config["experiments"][name]["measure"]
            self.assertEqual(measured["paths"], ["numpy", "torch", "read", "gemm", "calls"])
            self.assertEqual((measured["baseline"], measured["replica"]), ("torch", True))
            self.assertEqual(measured["environment"], "workflow/envs/vllm/requirements.txt")


if __name__ == "__main__":
    unittest.main()
