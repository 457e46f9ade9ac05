"""The timeline of one load of a sweep: the first of the value that `judge.shown` names."""

from dataclasses import replace

from inference_lab.analysis.summary_table import View
from inference_lab.errors import ConfigError
from inference_lab.figures import timeline


def draw(view: View) -> str:
    """SVG of that load alone. Raises ConfigError when the record has no load of that value."""
    record, shown = view.record, {name: str(value) for name, value in view.judge.shown.items()}
    for session in record.manifest["sessions"]:
        if shown and {name: str(value) for name, value in session["cell"].items()} == shown:
            name = session["name"]
            break
    else:
        raise ConfigError(f"{record.experiment}: judge.shown is {shown}, and no load was made under that")
    one = replace(
        record,
        manifest={**record.manifest, "sessions": [session]},
        requests=[request for request in record.requests if request.load == name],
        rows=[row for row in record.rows if row["load"] == name],
    )
    return timeline.draw(replace(view, record=one))
