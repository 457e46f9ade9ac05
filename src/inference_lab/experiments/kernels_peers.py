"""Our kernels and PyTorch's in one process, and beside them what neither can go below.

Three kinds of sections: a full decode of one head (no `num_heads` under fixed), decode steps behind T cached
tokens (`decode_steps`), a causal prefill of T tokens. The paths of a cell share inputs and rounds:

    numpy   this package's fastest form: attention.preallocated, multi_head.decode and .prefill
    torch   scaled_dot_product_attention, K and V preallocated, one fused projection, query heads of a group
            as rows: the same work in the same order
    read    the bytes that the call has to read (weights, and K and V of the positions seen, at every step),
            read once each from an array of the same size by np.maximum.reduce
    gemm    the multiply-adds that the call needs, the masked half left out, as square products of 512
    calls   `numpy` again with every width and length 1: what is left is the cost of the calls themselves

PyTorch comes from vLLM's environment, whose packages are last on the path: all else is this project's.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from inference_lab.config import sections
from inference_lab.errors import MeasurementRefused
from inference_lab.experiments import decode_paths, multi_head
from inference_lab.mechanisms import attention
from inference_lab.mechanisms.arrays import Array
from inference_lab.records.record import Measurement
from inference_lab.stream_load.servers.vllm import find_environment
from inference_lab.timing import worker
from inference_lab.timing.protocol import Bench, Finding, Timed, digest_of_arrays, finding, group_of

Call = Callable[[], Array]
Inputs = decode_paths.Inputs | multi_head.Inputs
_SITE = "INFERENCE_LAB_TORCH_SITE"  # from the measuring process to its children
_SQUARE = 512

if _SITE in os.environ:  # in a measuring process, before its worker looks at what is installed
    sys.path.append(os.environ[_SITE])  # last: every package of this project goes first


def load_torch(threads: int) -> Any:
    """The module torch with this many threads and no gradients. Raises MeasurementRefused without it."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MeasurementRefused(f"{error}; workflow/envs/vllm/install.py installs PyTorch") from None
    for name in ("torch.ops", "torch.classes"):  # made by code, under a name without its folder
        made: Any = sys.modules[name]
        made.__file__ = str(Path(str(torch.__file__)).parent / Path(str(made.__file__)).name)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    if torch.get_num_threads() != threads:
        raise MeasurementRefused(f"torch has {torch.get_num_threads()} threads, declared are {threads}")
    return torch


class Peer:
    """PyTorch's side of one cell of heads: weights fused as (N, C), K and V preallocated."""

    def __init__(self, torch: Any, cell: multi_head.Inputs) -> None:
        self.cell = cell
        self.linear = torch.nn.functional.linear
        self.attend = torch.nn.functional.scaled_dot_product_attention
        self.x = _tensor(torch, cell.x)
        self.w = _tensor(torch, np.concatenate((cell.wq, cell.wk, cell.wv), axis=1).T)
        B, tokens, C = cell.x.shape
        H, G = cell.num_heads, cell.num_kv_heads
        self.D = C // H
        self.widths = [H * self.D, G * self.D, G * self.D]
        self.k, self.v = (torch.empty(B, G, tokens, self.D, dtype=self.x.dtype) for _ in range(2))

    def project(self, start: int, end: int) -> Any:
        """q (B, T, H·D) of the tokens start to end; their keys and values are stored."""
        B, G = self.k.shape[:2]
        q, k, v = self.linear(self.x[:, start:end], self.w).split(self.widths, dim=2)
        self.k[:, :, start:end] = k.view(B, end - start, G, self.D).transpose(1, 2)
        self.v[:, :, start:end] = v.view(B, end - start, G, self.D).transpose(1, 2)
        return q

    def decode(self) -> Array:
        """(B, H, 1, D) of the last token: every token of x behind its first T, one by one."""
        B, G = self.k.shape[:2]
        output = None
        for t in range(self.cell.sequence_length, self.x.shape[1]):
            q = self.project(t, t + 1).view(B, G, self.cell.num_heads // G, self.D)
            output = self.attend(q, self.k[:, :, : t + 1], self.v[:, :, : t + 1])
        return output.reshape(B, self.cell.num_heads, 1, self.D).numpy()  # pyright: ignore

    def prefill(self) -> Array:
        """(B, H, T, D) of all tokens at once."""
        B, T, _ = self.x.shape
        H, G = self.cell.num_heads, self.cell.num_kv_heads
        q = self.project(0, T).view(B, T, H, self.D).transpose(1, 2)
        grouped = {"enable_gqa": True} if G < H else {}
        return self.attend(q, self.k, self.v, is_causal=True, **grouped).numpy()


def full_decode(torch: Any, x: Array, wq: Array, wk: Array, wv: Array) -> Array:
    """(B, T, C) -> (B, T, C): attention.preallocated as PyTorch does it, from an empty cache."""
    tokens, w = _tensor(torch, x), _tensor(torch, np.concatenate((wq, wk, wv), axis=1).T)
    B, T, C = x.shape
    linear, attend = torch.nn.functional.linear, torch.nn.functional.scaled_dot_product_attention
    keys, values, output = (torch.empty(B, 1, T, C, dtype=tokens.dtype) for _ in range(3))
    for t in range(T):
        q, k, v = linear(tokens[:, t : t + 1], w).view(B, 1, 1, 3 * C).split(C, dim=3)
        keys[:, :, t : t + 1], values[:, :, t : t + 1] = k, v
        output[:, :, t : t + 1] = attend(q, keys[:, :, : t + 1], values[:, :, : t + 1])
    return output[:, 0].numpy()


def _tensor(torch: Any, array: Array) -> Any:
    return torch.from_numpy(np.array(array, order="C"))


def read(steps: list[tuple[int, int]], dtype: Any) -> Call:
    """A call that reads (weights, keys and values) numbers at every step, each lot as one array."""
    lots = [np.zeros(max(sizes), dtype) for sizes in zip(*steps, strict=True)]

    def call() -> Array:
        return np.array(
            [np.maximum.reduce(lot[:n]) for step in steps for lot, n in zip(lots, step, strict=True)]
        )

    return call


def gemm(multiply_adds: int, dtype: Any) -> Call:
    """A call of about this many multiply-adds: products of (n, 512) and (512, 512), n up to 512."""
    rows = max(1, round(multiply_adds / _SQUARE**2))
    a, b = (np.full((_SQUARE, _SQUARE), 1 / _SQUARE, dtype) for _ in range(2))
    output = np.empty_like(a)

    def call() -> Array:
        for start in range(0, rows, _SQUARE):
            n = min(_SQUARE, rows - start)
            np.matmul(a[:n], b, out=output[:n])
        return output[:1].copy()

    return call


def heads_calls(section: sections.KernelsPeers, cell: multi_head.Inputs, torch: Any) -> dict[str, Call]:
    """The paths of a cell of decode steps or of a prefill."""
    peer = Peer(torch, cell)
    B, end, C = cell.x.shape
    T, H, G = cell.sequence_length, cell.num_heads, cell.num_kv_heads
    decodes = end > T
    ours = multi_head.PATHS["preallocated" if decodes else "prefill"]
    small = section.fixed.having("d_model", H).having("num_kv_heads", G).having("sequence_length", 1)
    peer.project(0, T)
    kv, weights = 2 * B * G * (C // H), C * (C // H) * (H + 2 * G)
    steps = [(weights, kv * (t + 1)) for t in range(T, end)] if decodes else [(weights, kv * T)]
    seen = sum(range(T + 1, end + 1)) if decodes else T * (T + 1) // 2
    return {
        "numpy": ours(cell),
        "torch": peer.decode if decodes else peer.prefill,
        "read": read(steps, cell.x.dtype),
        "gemm": gemm(B * ((end - T or T) * weights + 2 * C * seen), cell.x.dtype),
        "calls": ours(multi_head.inputs(small)),
    }


def full_calls(section: sections.KernelsPeers, cell: decode_paths.Inputs, torch: Any) -> dict[str, Call]:
    """The paths of a cell of full decodes."""
    B, T, C = cell[0].shape
    small = section.fixed.having("d_model", 1).having("batch_size", 1).having("sequence_length", T)
    return {
        "numpy": partial(attention.preallocated, *cell),
        "torch": partial(full_decode, torch, *cell),
        "read": read([(3 * C * C, 2 * B * C * (t + 1)) for t in range(T)], cell[0].dtype),
        "gemm": gemm(B * (T * 3 * C * C + C * T * (T + 1)), cell[0].dtype),
        "calls": partial(attention.preallocated, *decode_paths.inputs(small)),
    }


def check_full(timed: Timed, cell: decode_paths.Inputs) -> Finding:
    """Compare a full decode with one masked pass."""
    expected, allowed = attention.causal_attention(*cell), decode_paths.allowed_error(cell)
    return finding(timed.path, timed.call(), "causal_attention", expected, allowed, cell[0].shape)


def bind(section: sections.KernelsPeers) -> Bench:
    """The paths of a section as calls without arguments, inputs made once and shared by all of them."""
    torch = load_torch(section.blas_threads)

    def group(calls: dict[str, Call], B: int, T: int, C: int, H: int = 1, G: int = 1) -> list[Timed]:
        return group_of(section, (Timed(path, calls[path], B, T, C, H, G) for path in section.paths))

    groups: list[tuple[list[Timed], Callable[[Timed], Finding], Inputs]] = []
    if section.fixed.num_heads:
        for cell in multi_head.cells(section):
            calls = heads_calls(section, cell, torch)
            groups.append((group(calls, *cell.axes), partial(multi_head.check, cell=cell), cell))
    else:
        for cell in decode_paths.cells(section):
            calls = full_calls(section, cell, torch)
            groups.append((group(calls, *cell[0].shape), partial(check_full, cell=cell), cell))
    compared = [(check, timed) for calls, check, _ in groups for timed in calls
                if timed.kind == "sample" and timed.path in ("numpy", "torch")]  # fmt: skip
    return Bench(
        [calls for calls, _, _ in groups],
        check=lambda: [check(timed) for check, timed in compared],
        data_sha256=digest_of_arrays(*(array for _, _, cell in groups for array in cell[:4])),
        facts={"torch": torch.__version__, "torch_threads": torch.get_num_threads(), "numpy": np.__version__},
    )


def measure(section: sections.KernelsPeers, progress: Callable[[int, int], None]) -> Measurement:
    """Measure a section beside vLLM's PyTorch.

    Raises MeasurementRefused when that environment is not there, or was made for another Python.
    """
    environment = find_environment()
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    if environment.facts["python"] != ours:
        raise MeasurementRefused(
            f"PyTorch in {environment.folder} is for Python {environment.facts['python']}, this is {ours};"
            f" run `python workflow/envs/vllm/install.py` under {ours}, or this under the other"
        )
    os.environ[_SITE] = str(environment.site)
    try:
        measured = worker.measure(__name__, section, progress)
    finally:
        del os.environ[_SITE]
    return replace(measured, facts={**measured.facts, "peer": environment.facts})
