"""Bytes of keys and values, what fits a budget, and the published shapes."""

import re
import unittest

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.errors import InputError
from inference_lab.mechanisms import kv_capacity
from inference_lab.mechanisms.kv_cache import DynamicCache, PreallocatedCache
from inference_lab.mechanisms.kv_capacity import BYTES_PER_ELEMENT, GIB, PUBLISHED_MODELS, Capacity, KVShape
from tests import subject

tried = subject.of(kv_capacity)


class BytesTest(unittest.TestCase):
    """The formula."""

    def test_by_hand(self) -> None:
        """32 layers, 8 heads of 128, float16: 2·32·8·128·2 = 131072 bytes a token, 512 MiB for 4096."""
        shape = tried.KVShape(num_layers=32, num_kv_heads=8, head_dim=128)
        self.assertEqual(shape.bytes_per_token("float16"), 131072)
        self.assertEqual(shape.nbytes("float16", 4096), 512 * 2**20)
        self.assertEqual(shape.nbytes("float16", 4096, batch_size=3), 3 * 512 * 2**20)
        self.assertEqual(shape.nbytes("float16", 0), 0)

    def test_equals_the_bytes_of_real_caches(self) -> None:
        """The formula gives the `nbytes` of caches that are allocated."""
        B, G, T, D = 2, 3, 7, 5
        for dtype in ("float64", "float32", "float16", "int8"):
            with self.subTest(dtype=dtype):
                expected = tried.KVShape(1, G, D).nbytes(dtype, T, B)
                self.assertEqual(PreallocatedCache((B, G, T), D, D, dtype).nbytes, expected)
                grown = DynamicCache((B, G, T), D, D, dtype)
                for _ in range(T):
                    grown.append(*(np.ones((B, G, 1, D), dtype),) * 2)
                self.assertEqual(grown.nbytes, expected)
                self.assertEqual(grown.keys.nbytes + grown.values.nbytes, expected)

    def test_bytes_per_element_are_numpys(self) -> None:
        """The bytes of each dtype are NumPy's own, where NumPy has it."""
        for dtype, size in BYTES_PER_ELEMENT.items():
            if dtype != "bfloat16":
                self.assertEqual(np.dtype(dtype).itemsize, size, dtype)

    def test_refusals(self) -> None:
        """No layers, a negative length, a fraction, an unknown dtype: InputError with the value."""
        shape = KVShape(2, 3, 4)
        for call, message in (
            (lambda: KVShape(0, 3, 4), "num_layers is 0"),
            (lambda: KVShape(2, 3, 4.0), r"head_dim is 4\.0"),  # pyright: ignore
            (lambda: KVShape(2, True, 4), "num_kv_heads is True"),
            (lambda: shape.nbytes("float16", -1), "sequence_length is -1"),
            (lambda: shape.nbytes("float16", 1, -1), "batch_size is -1"),
            (lambda: shape.bytes_per_token("fp16"), "dtype is 'fp16', must be one of float64"),
            (lambda: shape.bytes_per_token(["int8"]), "dtype is .'int8'., must be one of float64"),  # pyright: ignore
            (lambda: Capacity(-1, 4), "budget_bytes is -1"),
            (lambda: Capacity(8, 0), "bytes_per_token is 0"),
            (lambda: Capacity(8, 4, 0), "block_size is 0"),
            (lambda: Capacity(8, 4).sequences(0), "sequence_length is 0"),
        ):
            with self.subTest(message), self.assertRaisesRegex(InputError, message):
                call()


class CapacityTest(unittest.TestCase):
    """What fits a budget."""

    def test_by_hand(self) -> None:
        """100 bytes, 3 a token: 33 tokens; in blocks of 4 tokens 8 blocks, 32 tokens, 4 sequences of 5."""
        loose, paged = tried.Capacity(100, 3), tried.Capacity(100, 3, block_size=4)
        self.assertEqual((loose.tokens, loose.sequences(5)), (33, 6))
        self.assertEqual((paged.blocks, paged.tokens), (8, 32))
        self.assertEqual((paged.blocks_of(4), paged.blocks_of(5), paged.sequences(5)), (1, 2, 4))
        self.assertEqual((tried.Capacity(2, 3).tokens, tried.Capacity(2, 3).sequences(1)), (0, 0))

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.integers(0, 500), st.integers(1, 9), st.integers(1, 6), st.integers(1, 20))
    def test_as_a_server_would_hand_blocks_out(
        self, budget: int, per_token: int, block_size: int, length: int
    ) -> None:
        """Blocks handed out one by one until the budget is spent give the same tokens and sequences."""
        free, left = 0, budget
        while left >= per_token * block_size:
            free, left = free + 1, left - per_token * block_size
        found = tried.Capacity(budget, per_token, block_size)
        self.assertEqual((found.blocks, found.tokens), (free, free * block_size))
        sequences = 0
        needed = 0
        while needed * block_size < length:
            needed += 1
        while free >= needed:
            free, sequences = free - needed, sequences + 1
        self.assertEqual(found.sequences(length), sequences)


class PublishedModelsTest(unittest.TestCase):
    """The table of published shapes."""

    def test_every_row_cites_a_file_at_a_commit(self) -> None:
        """Repository, path and a full commit id stand with every model, and no name twice."""
        for model in PUBLISHED_MODELS:
            with self.subTest(model.name):
                self.assertRegex(model.repository, r"^[\w.-]+/[\w.-]+$")
                self.assertTrue(model.path)
                self.assertTrue(re.fullmatch(r"[0-9a-f]{40}", model.commit))
        names = [model.name for model in PUBLISHED_MODELS]
        self.assertEqual(len(set(names)), len(names))

    def test_tokens_per_gib(self) -> None:
        """Known answers: a multi-query, a grouped and a multi-head model in float16."""
        shapes = {model.name: model.shape for model in PUBLISHED_MODELS}
        for name, tokens in (("Gemma-2B", 58254), ("Llama-3.1-8B-Instruct", 8192), ("OLMo2-7B", 2048)):
            self.assertEqual(Capacity(GIB, shapes[name].bytes_per_token("float16")).tokens, tokens)


if __name__ == "__main__":
    unittest.main()
