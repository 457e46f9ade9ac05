"""What `measure:` of an experiment may say: one class per kind of experiment, each key described.

    section = read_measure(json, "config.yaml: experiments.m1")     # or the conditions of a manifest
    section.by, section.rounds, section.fixed.seed                  # each key is an attribute
    section.axis, section.values                                    # "batch_size", [1, 2, 4, 8]
    [section.fixed.having(section.axis, value) for value in section.values]    # conditions of each cell
    section.given()                                                 # JSON again: what was written

A key that may be left out has a default that says so: 0, "", {} or None. In `fixed`, a condition is either
varied or given; the varied one is None there until `having` sets it. No receipt names this file: the values
of a section are in its receipts.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, TypeAdapter, model_validator

from inference_lab.config.closed import (
    Closed,
    Count,
    Natural,
    NotNegative,
    Positive,
    Several,
    checked,
    fault,
    matching,
    one_of,
)

UNUSED: Any = None  # in `vary`, of every other axis
VARIED: Any = None  # in `fixed`, of the axis
DecodePath = Annotated[str, one_of("no_cache", "no_cache_last_query", "dynamic", "preallocated")]
StampPath = Literal["kernel", "user", "open_loop"]
BesideBusy = Annotated[str, matching("(no_cache|no_cache_last_query|dynamic|preallocated)(_beside_busy)?")]


class Vary(Closed, frozen=True):
    """Exactly one axis and its values; which axes a kind of experiment has is in its `axes`."""

    batch_size: Several[Count] = UNUSED
    sequence_length: Several[Count] = UNUSED
    num_kv_heads: Several[Count] = UNUSED
    d_model: Several[Count] = UNUSED
    blas_threads: Several[Count] = UNUSED
    observation: Several[str] = UNUSED
    dtype: Several[Literal["float32", "float16", "bfloat16", "int8"]] = UNUSED
    setup: Several[Literal["gate_4_batch_2", "gate_2_batch_4", "two_gates_4_batch_8"]] = UNUSED
    streams: Several[Count] = UNUSED
    concurrency: Several[Count] = UNUSED
    input_tokens: Several[Count] = UNUSED
    output_tokens: Several[Count] = UNUSED
    rate_per_s: Several[Positive] = UNUSED
    prefix_groups: Several[Count] = UNUSED
    max_num_seqs: Several[Count] = UNUSED
    max_num_batched_tokens: Several[Count] = UNUSED
    kv_cache_gib: Several[Positive] = UNUSED

    @model_validator(mode="after")
    def _one_axis(self) -> "Vary":
        if len(self.model_fields_set) != 1:
            raise fault(
                f"varies {' and '.join(self.given()) or 'nothing'}, must vary one axis: one unknown at a time"
            )
        return self


class Fixed(Closed, frozen=True):
    """Every condition that is not varied."""


class Section(Closed, frozen=True):
    """What each kind of experiment has: a module that measures it, one varied axis, all else fixed."""

    axes: ClassVar[tuple[str, ...]]
    by: str = Field(description="module in src/inference_lab/experiments that measures it")
    vary: Vary = Field(description="the one axis and its values")
    fixed: Fixed = Field(description="every other condition")

    @property
    def axis(self) -> str:
        """The name of what is varied."""
        return next(iter(self.vary.model_fields_set))

    @property
    def values(self) -> list[Any]:
        """The values of what is varied, in their order."""
        return getattr(self.vary, self.axis)

    @model_validator(mode="after")
    def _varied_or_fixed(self) -> "Section":
        if self.axis not in self.axes:
            raise fault(f"vary: {self.axis} is no axis of {self.by}; name one of {', '.join(self.axes)}")
        if self.axis in self.fixed.model_fields_set | self.model_fields_set:
            raise fault(f"{self.axis} is both varied and fixed; take it out of one")
        for name, value in self.fixed:
            if value is VARIED and name != self.axis:
                raise fault(f"fixed: key {name!r} is missing; it is neither varied nor fixed")
        return self


class Quiet(Section, frozen=True):
    """A measurement that waits for a quiet machine."""

    quiet_cores: Positive = Field(description="quiet: others use fewer cores than this")
    quiet_wait_s: NotNegative = Field(description="s to wait for that; then it measures anyway, flagged")


class OneHead(Fixed, frozen=True):
    """Inputs of single-head attention."""

    batch_size: Count = Field(VARIED, description="B, sequences")
    sequence_length: Count = Field(VARIED, description="T, tokens")
    d_model: Count = Field(VARIED, description="C, width of the model")
    dtype: Literal["float32", "float64"] = Field(description="of inputs and weights")
    seed: Natural = Field(description="of inputs, weights and order")


class Heads(OneHead, frozen=True):
    """Inputs of multi-head attention."""

    num_heads: Count = Field(description="H, query heads")
    num_kv_heads: Count = Field(VARIED, description="G, key/value heads")
    decode_steps: Count = Field(0, description="tokens that one timed call decodes; 0: none")


class Timed(Quiet, frozen=True):
    """Calls timed against each other, in fresh processes, one after another."""

    fixed: OneHead
    paths: Several[str] = Field(description="what is compared, on the same inputs")
    baseline: str = Field(description="the path that ratios are taken to")
    replica: bool = Field(description="time the baseline twice in every round (A/A)")
    blas_threads: Count = Field(description="threads of BLAS, set before each process starts and verified")
    processes: Count = Field(description="fresh processes, one after another")
    rounds: Count = Field(description="rounds per process: each times every cell once, in shuffled order")
    warmups: Natural = Field(description="calls of each cell before the first round, kept in controls.csv")

    @model_validator(mode="after")
    def _baseline_is_a_path(self) -> "Timed":
        if self.baseline not in self.paths:
            raise fault(f"baseline is {self.baseline!r}, must be one of paths: {', '.join(self.paths)}")
        return self


class DecodePaths(Timed, frozen=True):
    """Single-head decode paths."""

    axes = ("batch_size", "sequence_length", "d_model")
    by: Literal["decode_paths"]
    paths: Several[DecodePath]


class Threads(Timed, frozen=True):
    """The same paths under several numbers of BLAS threads, beside an idle and a busy core."""

    axes = ("blas_threads",)
    by: Literal["threads"]
    paths: Several[BesideBusy]
    blas_threads: Count = VARIED


class SelfCheck(Timed, frozen=True):
    """The baseline against itself (null_*) and against itself plus a known share of work (plus_*)."""

    axes = ("sequence_length",)
    by: Literal["selfcheck"]
    paths: Several[Annotated[str, matching("preallocated|(null|plus)_[1-9][0-9]*")]]
    baseline: Literal["preallocated"]
    replica: Literal[True]
    runs: Count = Field(description="whole measurements, each of `processes` processes")


class MultiHead(Timed, frozen=True):
    """Decode steps and prefills of multi-head attention."""

    axes = ("sequence_length", "num_kv_heads", "d_model")
    by: Literal["multi_head"]
    fixed: Heads
    paths: Several[Annotated[str, one_of("preallocated", "dynamic", "repeated", "prefill", "stepwise")]]


class PeerHeads(Heads, frozen=True):
    """Inputs of either: without num_heads a full decode of one head."""

    num_heads: Count = 0
    num_kv_heads: Count = 0


class KernelsPeers(Timed, frozen=True):
    """Our kernels beside PyTorch's."""

    axes = ("batch_size", "sequence_length")
    by: Literal["kernels_peers"]
    fixed: PeerHeads
    environment: str = Field(description="file of pins that PyTorch comes from; a change makes it stale")
    paths: Several[Annotated[str, one_of("numpy", "torch", "read", "gemm", "calls")]]


class Observations(Section, frozen=True):
    """What NumPy operations share and copy; nothing is timed."""

    axes = ("observation",)
    by: Literal["observations"]
    fixed: Fixed = Fixed()


class CacheBlocks(Fixed, frozen=True):
    """Whose cache is counted."""

    block_size: Count = Field(description="tokens per block of a paged server")
    sequence_length: Count = Field(description="T, tokens")


class Capacity(Section, frozen=True):
    """How many tokens of published models' caches fit into one GiB; nothing is timed."""

    axes = ("dtype",)
    by: Literal["capacity"]
    fixed: CacheBlocks


class Served(Fixed, frozen=True):
    """Requests to the reference server and how fast it answers."""

    input_tokens: Count = Field(description="length of each prompt")
    output_tokens: Count = Field(description="tokens of each answer")
    ttft_ms: Positive = Field(description="ms that the reference server takes over a prompt")
    itl_ms: Positive = Field(description="ms that it takes over a step of tokens")
    seed: Natural = Field(description="of prompts and order")


class LimitedLoad(Served, frozen=True):
    """What each client asks for."""

    requests: Count = Field(description="requests per client")


class ClientGate(Quiet, frozen=True):
    """Who decides the batch of a step: the client's limit or the server's scheduler?"""

    axes = ("setup",)
    by: Literal["client_gate"]
    fixed: LimitedLoad


class StreamLoad(Served, frozen=True):
    """What each stream asks for."""

    requests_per_stream: Count = Field(description="requests per stream, one after another")


class Calibration(Quiet, frozen=True):
    """The load client against a server that writes down its own times."""

    axes = ("streams",)
    by: Literal["calibration"]
    fixed: StreamLoad
    paths: Several[StampPath] = Field(description="stamps by the kernel or at the read; Poisson arrivals")
    rounds: Count = Field(description="rounds of every path and number of streams")


class Server(Closed, frozen=True):
    """What serves: its kind and, for vLLM, what it serves and how."""

    kind: Literal["reference", "vllm", "external"] = Field(description="ours, vLLM, or one that runs already")
    base_url: str = Field("", description="of a server that runs already")
    model: dict[str, Any] = Field({}, description="shape of a model with random weights, or its path")
    dtype: str = Field("", description="of weights and cache")
    max_model_len: Count = Field(0, description="most tokens per request")
    block_size: Count = Field(0, description="tokens per block of the KV cache")
    enable_prefix_caching: bool = Field(False, description="share blocks of equal prefixes")
    arguments: list[str] = Field([], description="further arguments of vLLM")
    ready_s: Positive = Field(0, description="seconds that it may take to get ready")
    ttft_ms: Positive = Field(0, description="ms that the reference server takes over a prompt")
    itl_ms: Positive = Field(0, description="ms that it takes over a step of tokens")


class SweptLoad(Fixed, frozen=True):
    """What each load asks for, and how its server is set up."""

    requests: Count = Field(description="requests per load")
    concurrency: Count = Field(VARIED, description="most requests in flight")
    input_tokens: Count = Field(VARIED, description="length of each prompt")
    output_tokens: Count = Field(VARIED, description="tokens of each answer")
    prefix_tokens: Count = Field(0, description="length of the prefix that a group shares")
    max_num_seqs: Count = Field(VARIED, description="requests per step")
    max_num_batched_tokens: Count = Field(VARIED, description="tokens per step")
    kv_cache_gib: Positive = Field(VARIED, description="memory of the KV cache, GiB")
    seed: Natural = Field(description="of prompts, arrivals and order")


class Sweep(Quiet, frozen=True):
    """Loads of a real server over one axis, of the load or of the server."""

    axes = (
        *("concurrency", "input_tokens", "output_tokens", "rate_per_s", "prefix_groups"),
        *("max_num_seqs", "max_num_batched_tokens", "kv_cache_gib"),
    )
    by: Literal["sweep"]
    fixed: SweptLoad
    server: Server = Field(description="what serves")
    environment: str = Field("", description="file of pins that decide what serves")
    servers: Count = Field(description="fresh servers, per value where the server's own axis is varied")
    rounds: Count = Field(description="loads of each value under each server")
    warmup_requests: Natural = Field(description="requests before the first round, kept, never measured")
    sample_s: Positive = Field(description="seconds between two looks at /metrics during a load")


Timings = DecodePaths | Threads | SelfCheck | MultiHead | KernelsPeers
Measure = Annotated[
    Timings | Observations | Capacity | ClientGate | Calibration | Sweep, Field(discriminator="by")
]
_MEASURE: TypeAdapter[Measure] = TypeAdapter(Measure)


def read_measure(value: object, place: str) -> Measure:
    """The `measure:` part of a section, or a manifest's conditions. Raises ConfigError."""
    return checked(_MEASURE.validate_python, value, place)
