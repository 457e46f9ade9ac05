"""What `judge:` of an experiment may say: one class for all kinds, each key described."""

from typing import Annotated, Any, Literal

from annotated_types import Gt
from pydantic import Field

from inference_lab.config.closed import Closed, Name, OptionalPositive, Positive, checked, matching

# analysis.md and report.md are made by stages of their own
Figure = Annotated[str, matching(r"(?!analysis[.]md$|report[.]md$)[a-z0-9][a-z0-9.-]*[.](svg|md)")]
Drawer = Annotated[str, matching(r"(figures|analysis|pages)[.][a-z_]+")]
Bound = Annotated[str, matching("[a-z0-9_]+_ms")]


class Judge(Closed, frozen=True):
    """Bounds, factors and looks: a change summarises again, from the same raw samples."""

    by: Literal["timing", "peers", "selfcheck", "exact_summary", "serving"] = Field(
        description="module in src/inference_lab/analysis that summarises it"
    )
    figures: dict[Figure, Drawer] = Field(description="file in results/<experiment>/ to what draws it")
    knee_factor: Annotated[OptionalPositive, Gt(1)] = Field(
        None, description="growth of positions/s that doubling the batch must reach"
    )
    max_others_cpu: OptionalPositive = Field(None, description="cores that others may use")
    max_probe_drift: OptionalPositive = Field(None, description="relative drift of the probe")
    max_warmup_residual: OptionalPositive = Field(
        None, description="relative excess of the first rounds over the later ones"
    )
    max_client_lag_ms: OptionalPositive = Field(None, description="P99 of the load client's own lag, ms")
    calibration: str = Field("", description="whose record says how far the load client's times are off")
    window: Literal["steady", "all"] = Field("steady", description="of requests, by when they arrive")
    slo: dict[Bound, Positive] = Field({}, description="ms that a request must keep to count for goodput")
    shown: dict[str, Any] = Field({}, description="value of the axis whose first load is drawn alone")
    call: str = Field("", description="what one timed call does, in the words of a figure's title")
    report: Name = Field("", description="results/<report>/report.md is of all experiments that name it")
    article: bool = Field(False, description="docs/experiments/<experiment>.md is written")


def read_judge(value: object, place: str) -> Judge:
    """The `judge:` part of a section. Raises ConfigError in one line."""
    return checked(Judge.model_validate, value, place)
