"""What receipts, manifests (the receipts of measurements) and figures may say of where they are from.

All stay what JSON made of them. Names and dates are used as paths, so they hold no slash.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired
from xml.etree import ElementTree

from annotated_types import Len
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    with_config,
)
from typing_extensions import TypedDict

from inference_lab.config.closed import Natural, checked, fault, matching
from inference_lab.errors import RecordError


def _moment(text: str) -> str:
    try:
        if "/" not in text and datetime.fromisoformat(text):
            return text
    except ValueError:
        pass
    raise fault(f"is {text!r}, must be a date and time such as 2026-12-01T10:00:00+00:00")


Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Moment = Annotated[str, AfterValidator(_moment)]
JSON = dict[str, Any]
Span = dict[str, float]  # median and max over the looks at the machine
_closed = with_config(ConfigDict(strict=True, extra="forbid"))  # what is inside is closed, too


class _Environment(TypedDict, total=False):  # the machine, and what else it did meanwhile
    python: str
    implementation: str
    system: str
    machine: str
    cpu_model: str
    cores: int | None
    affinity: list[int] | None
    kernel: str
    governor: str | None
    packages: dict[str, str | None]
    package_digests: dict[str, Sha256] | None
    thread_variables: dict[str, str | list[str]]  # a list where processes differ
    blas: dict[str, str | int | list[str] | list[int] | None]
    load_before: list[float] | None
    load_after: list[float] | None
    mhz: Span | None
    others_used_cores: Span | None
    pressure_percent: Span | None
    steal_cores: Span | None
    unknown_looks: int
    waited_for_quiet_s: float
    watched_s: float
    neighbour_core: int


class _MadeFile(TypedDict):
    sha256: Sha256


@_closed
class Receipt(TypedDict):
    """The receipt of a step: what was read and what was made."""

    schema: int
    digest: Sha256
    stage: str
    experiment: NotRequired[str | None]
    command: NotRequired[list[str]]
    inputs: dict[str, Sha256]
    pins: dict[str, str]
    outputs: dict[str, _MadeFile]
    tests: NotRequired[dict[str, str]]  # of the unit tests alone
    environment: NotRequired[_Environment]  # of the unit tests alone


class _RawFile(_MadeFile):  # a file beside the manifest
    rows: Natural


class _PredictionFile(TypedDict):  # the prediction as it was when the measurement began
    file: Annotated[str, matching("predictions/[^/]+[.]yaml")]
    sha256: Sha256


class _Commit(TypedDict):  # the commit of the checkout, and whether files differed from it
    commit: str
    dirty: bool


class _Validity(TypedDict):  # whether a measurement may be believed, and why not
    valid: bool
    reasons: list[str]


@_closed
class Manifest(TypedDict):
    """The receipt of a measurement: all that is known of it besides its samples."""

    schema: int
    digest: Sha256
    stage: Literal["measure"]
    kind: Annotated[str, matching("[a-z_]+")]  # what its files hold
    experiment: Annotated[str, matching("(?![.]{1,2}/?$)[^/]+/?")]  # of a load: its folder's name and a slash
    command: list[str]
    conditions: JSON
    inputs: dict[str, Sha256]
    pins: dict[str, str]
    prediction: _PredictionFile | None
    outputs: dict[Annotated[str, matching("[^/]+[.](csv|jsonl)")], _RawFile]
    environment: _Environment
    git: NotRequired[_Commit | None]
    git_reason: NotRequired[str | None]  # why no commit is named
    tests: NotRequired[str | None]
    started_at: Moment
    finished_at: Moment
    clock: NotRequired[str]
    validity: _Validity
    oracle: NotRequired[list[JSON]]
    columns: NotRequired[list[str]]
    data_sha256: NotRequired[Sha256]
    model: NotRequired[str]
    neighbours: NotRequired[Any]  # by path, or a list
    peer: NotRequired[JSON]  # the environment that the peer of a comparison is from
    processes: NotRequired[list[JSON]]
    runs: NotRequired[list[_Environment]]
    servers: NotRequired[list[JSON]]
    sessions: NotRequired[list[JSON]]


class Origin(TypedDict):
    """What a figure says of itself in `dc:source`."""

    experiment: str
    files: Annotated[dict[str, str], Len(1)]  # sha256 of every file behind it, by its name
    command: str


def _files_named(source: Any) -> Any:
    """Figures drawn before 2026-12-03 name one raw file and the summary."""
    if isinstance(source, dict) and "raw_sha256" in source and "summary_sha256" in source:
        return {**source, "files": {"raw": source["raw_sha256"], "summary.csv": source["summary_sha256"]}}
    return source  # pyright: ignore[reportUnknownVariableType]


_RECEIPT: TypeAdapter[Receipt] = TypeAdapter(Receipt)
_MANIFEST: TypeAdapter[Manifest] = TypeAdapter(Manifest)
_ORIGIN: TypeAdapter[Origin] = TypeAdapter(Annotated[Origin, BeforeValidator(_files_named)])


def check_receipt(path: Path, receipt: object) -> None:
    """Raises ConfigError with the first thing that a receipt may not say."""
    form = _MANIFEST if path.name.endswith("manifest.json") else _RECEIPT
    checked(form.validate_python, receipt, str(path))


def source_text(source: Mapping[str, object]) -> str:
    """One line of JSON for the figure's `dc:source`."""
    return json.dumps({key: source[key] for key in Origin.__annotations__}, ensure_ascii=False)


def read_metadata(svg_text: str) -> Origin:
    """What a figure was drawn from, as `source_text` wrote it.

    Raises RecordError, which the caller completes with the file, when the text is not SVG or names no origin.
    """
    try:
        svg = ElementTree.fromstring(svg_text)
    except ElementTree.ParseError:
        raise RecordError("is no whole SVG") from None
    text = svg.findtext(".//{http://purl.org/dc/elements/1.1/}source") or ""
    try:
        return _ORIGIN.validate_json(text, strict=True)
    except ValidationError:
        says = repr(text[:80]) if text else "nothing"
        words = f"is SVG that says {says} in dc:source, where a figure names"
        raise RecordError(f"{words} {', '.join(Origin.__annotations__)}") from None
