"""What `judge:` of an experiment may say: one class for all kinds, each key described."""

from typing import Annotated, Any, Literal

from annotated_types import Gt
from pydantic import Field

from inference_lab.config.closed import Closed, Name, OptionalPositive, Positive, checked, matching


class Judge(Closed, frozen=True):
    """Bounds, factors and looks: a change summarises again, from the same raw samples."""

    by: Literal["timing", "peers", "selfcheck", "exact_summary", "serving"] = Field(
        description="module in src/inference_lab/analysis that summarises it"
    )
    figures: dict[
        Annotated[str, matching(r"(?!analysis[.]md$|report[.]md$)[a-z0-9][a-z0-9.-]*[.](svg|md)")],
        Annotated[str, matching(r"(figures|analysis|pages)[.][a-z_]+")],
    ] = Field(description="file in results/<experiment>/ to the module that draws it")
    knee_factor: Annotated[OptionalPositive, Gt(1)] = Field(
        default=None, description="growth of positions/s that doubling the batch must reach"
    )
    max_others_cpu: OptionalPositive = Field(default=None, description="cores that others may use")
    max_probe_drift: OptionalPositive = Field(default=None, description="relative drift of the probe")
    max_warmup_residual: OptionalPositive = Field(
        default=None, description="relative excess of the first rounds over the later ones"
    )
    max_client_lag_ms: OptionalPositive = Field(
        default=None, description="P99 of the load client's own lag, ms"
    )
    calibration: str = Field(
        default="", description="experiment whose record says how far the load client's times are off"
    )
    window: Literal["steady", "all"] = Field(
        default="steady", description="measured: requests that arrive in the steady state, or all"
    )
    slo: dict[Annotated[str, matching("[a-z0-9_]+_ms")], Positive] = Field(
        default={}, description="bounds in ms that a request must keep to count for goodput"
    )
    shown: dict[str, Any] = Field(default={}, description="value of the axis whose first load is drawn alone")
    call: str = Field(default="", description="what one timed call does, in the words of a figure's title")
    report: Annotated[str, Name] = Field(
        default="", description="results/<report>/report.md is written of all experiments that name it"
    )
    article: bool = Field(default=False, description="docs/experiments/<experiment>.md is written")


def read_judge(value: object, place: str) -> Judge:
    """The `judge:` part of a section. Raises ConfigError in one line."""
    return checked(Judge.model_validate, value, place)
