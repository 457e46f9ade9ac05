"""observations.md: what was observed of each operation, and which short-cuts these rows refute.

Predictions and verdicts stand in analysis.md and verdicts.csv; this page shows the observations alone.
"""

from collections.abc import Callable, Mapping, Sequence

from inference_lab.analysis.summary_table import View
from inference_lab.pages.render import made_from

Row = Mapping[str, str]
_HEAD = ("operation", "shape", "strides", "contiguity", "bytes", "owns", "shares", "write ->", "<- write")
_COLUMNS = (
    *("shape", "strides", "contiguity", "nbytes", "owns_data"),
    *("shares_memory", "write_reaches_source", "sees_source_write"),
)


def draw(view: View) -> str:
    """The page as Markdown: one row an observation, then what the rows say together."""
    rows = view.summary
    lines = [
        "# What NumPy shares and what it copies",
        "",
        "`owns`: the result owns its data. `shares`: it shares memory with its source. `write ->`: a write to"
        " the result shows in the source. `<- write`: a write to the source shows in the result. `–`: not"
        " defined, or a write that is refused.",
        "",
        f"| {' | '.join(_HEAD)} |",
        f"|{'---|' * len(_HEAD)}",
        *(f"| {' | '.join((row['observation'], *map(_shown, _values(row))))} |" for row in rows),
        "",
        "## The likeliest errors",
        "",
        "Short-cuts that are often taught, and the observations above that refute them:",
        "",
        *(
            f"- {rule}: {', '.join(against)}."
            for rule, fails in _SHORT_CUTS
            if (against := _names(rows, fails))
        ),
        "",
        made_from(view.source),
    ]
    return "\n".join(lines) + "\n"


def _values(row: Row) -> list[str]:
    return [row[column] for column in _COLUMNS]


def _shown(text: str) -> str:
    return {"true": "yes", "false": "no", "": "–"}.get(text, text)


def _names(rows: Sequence[Row], fails: Callable[[Row], bool]) -> list[str]:
    return [f"`{row['observation']}`" for row in rows if fails(row)]


_SHORT_CUTS: tuple[tuple[str, Callable[[Row], bool]], ...] = (
    (
        "*What does not own its data is a view of what I had.* It may be a view of a hidden copy",
        lambda row: row["owns_data"] == "false" and row["shares_memory"] == "false",
    ),
    (
        "*What owns its data is a copy.* Not when it is the source itself under a second name",
        lambda row: row["owns_data"] == "true" and row["shares_memory"] == "true",
    ),
    (
        "*A reshape is a view.* Not of axes that were swapped, unless one of them has length 1",
        lambda row: row["observation"].startswith("reshape") and row["shares_memory"] == "false",
    ),
    (
        "*Shared memory can be written.* A broadcast refuses",
        lambda row: row["shares_memory"] == "true" and not row["write_reaches_source"],
    ),
    (
        "*The axis of a softmax is a detail.* Over the batch, one sequence changes another",
        lambda row: row["mixes_sequences"] == "true",
    ),
)
