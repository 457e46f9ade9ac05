"""One report of several experiments on a served system: the answers, the numbers, what limits what.

Made from summaries, verdicts, predictions and manifests alone: a fresh clone writes the same bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_lab.analysis.summary_table import SEPARATOR, SummaryRow, pick, read_summary
from inference_lab.config.prediction import load_prediction
from inference_lab.pages import environment
from inference_lab.pages.answers import Answer, answers
from inference_lab.pages.numbers import compact, loads
from inference_lab.pages.render import Markdown, render
from inference_lab.records.receipts import read_receipt
from inference_lab.records.record import varied
from inference_lab.records.stages import folder, prediction_file


@dataclass(frozen=True)
class About:
    """One experiment: its question, the answers, its numbers and its manifest."""

    name: str
    manifest: Mapping[str, Any]
    question: str
    answers: Sequence[Answer]
    numbers: Markdown
    limits: Mapping[str, Sequence[str]]  # what limited the load: at which values
    flags: Sequence[str]
    figures: Sequence[str]

    @property
    def axis(self) -> str:
        """The varied condition."""
        return varied(self.manifest)[0]

    @property
    def pins(self) -> str:
        """The file that pins the server, with the first digits of its digest."""
        file = self.manifest["conditions"].get("environment")
        return f"{file} {self.manifest['inputs'][file][:12]}" if file else "none"


def report(name: str, section: Mapping[str, Any]) -> str:
    """Return the text of results/<name>/report.md; `section` names its experiments and those unmeasured.

    Raises RecordError when a summary or manifest is missing or torn.
    """
    experiments = [_read(**each) for each in section["experiments"]]
    manifests = {each.name: each.manifest for each in experiments}
    return render(
        Path(__file__).parent / "templates/report.md.j2",
        name=name,
        experiments=experiments,
        kinds=sorted({server["facts"]["kind"] for of in manifests.values() for server in of["servers"]}),
        unmeasured=section["unmeasured"],
        sessions=_sessions(manifests),
        machine=_machine(manifests),
        servers=environment.servers(manifests),
    )


def _read(experiment: str, figures: Sequence[str]) -> About:
    at = Path(folder(experiment))
    prediction = load_prediction(Path(prediction_file(experiment)))
    claims = [claim.given() for claim in prediction.claims]
    manifest, rows = read_receipt(at / "manifest.json"), read_summary(at / "summary.csv")
    advice = {part for row in rows for part in row["advice"].split(SEPARATOR) if row["flags"]}
    return About(
        experiment,
        manifest,
        prediction.question.strip(),
        answers(claims, read_summary(at / "verdicts.csv"), rows),
        loads(rows, claims),
        limits(manifest, rows),
        sorted(advice),
        figures,
    )


def _sessions(manifests: Mapping[str, Mapping[str, Any]]) -> Markdown:
    """Return when each experiment was measured and what else the machine did then."""
    lines: list[dict[str, str]] = []
    for name, manifest in manifests.items():
        starts = sorted(s["facts"]["started_s"] for s in manifest["servers"] if "started_s" in s["facts"])
        started = " to ".join(dict.fromkeys(f"{seconds:.3g}" for seconds in (*starts[:1], *starts[-1:])))
        lines.append({"experiment": name, **environment.session(manifest), "server started in, s": started})
    head = list(dict.fromkeys(column for line in lines for column in line))
    rows = [[line.get(column, "") for column in head] for line in lines]
    return compact([column.replace("_", " ") for column in head], rows, kept=1)


def _machine(manifests: Mapping[str, Mapping[str, Any]]) -> list[environment.Fact]:
    """Return the facts of the machine and the experiments they hold for."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, manifest in manifests.items():
        for fact in environment.machine(manifest).items():
            found.setdefault(fact, []).append(name)
    return [(*fact, "all" if len(of) == len(manifests) else ", ".join(of)) for fact, of in found.items()]


def limits(manifest: Mapping[str, Any], rows: Sequence[SummaryRow]) -> dict[str, list[str]]:
    """Return what was at its bound, by the steps and the queue of the server, and at which values."""
    conditions = manifest["conditions"]
    axis, values = varied(manifest)
    found: dict[str, list[str]] = {}
    for value in map(str, values):
        number = {metric: _number(rows, metric, {axis: value}) for metric in _LIMITS}
        reached = _limit(number, {**conditions["fixed"], axis: float(value)})
        found.setdefault(reached, []).append(value)
    return found


_LIMITS = {
    "peak_step_batch": "value",
    "peak_in_flight": "value",
    "step_prefill_tokens_peak": "median",
    "peak_waiting": "median",
    "preemptions": "median",
    "server_queue_mean": "median",
    "server_ttft_mean": "median",
}


def _number(rows: Sequence[SummaryRow], metric: str, cell: Mapping[str, str]) -> float | None:
    row = pick(rows, {"metric": metric, **cell}, "summary.csv")
    return None if row is None else row.number(_LIMITS[metric])


def _limit(number: Mapping[str, float | None], settings: Mapping[str, float]) -> str:
    """Return what was at its bound; each is read from a recorded number, and none excludes another."""
    batch, waiting, queue = number["peak_step_batch"], number["peak_waiting"], number["server_queue_mean"]
    if batch is None:
        return "not known: the steps of the server are not seen from here"
    found: list[str] = []
    if number["preemptions"]:
        found.append("the KV cache (running requests were preempted)")
    if (number["step_prefill_tokens_peak"] or 0) >= settings["max_num_batched_tokens"]:
        found.append("max_num_batched_tokens (a step was full of prompt tokens)")
    if batch >= settings["max_num_seqs"] and waiting:
        ttft = number["server_ttft_mean"]
        share = f": {100 * queue / ttft:.0f}% of the server's TTFT was queue time" if queue and ttft else ""
        found.append(f"max_num_seqs (a full batch of {batch:g}, and {waiting:g} waited{share})")
    if not found and batch == number["peak_in_flight"]:
        found.append("the clients (every request in flight was in a step)")
    return "; ".join(found) or "none of the declared bounds"
