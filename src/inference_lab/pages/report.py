"""One report of several experiments on a served system: the answers, the numbers, what limits what.

Made from summaries, verdicts, predictions and manifests alone: a fresh clone writes the same bytes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from inference_lab.analysis.summary_table import SEPARATOR, SummaryRow, pick, read_summary
from inference_lab.config.prediction import load_prediction
from inference_lab.pages import environment
from inference_lab.pages.answers import answers
from inference_lab.pages.environment import Fact, Manifest
from inference_lab.pages.numbers import compact, loads
from inference_lab.pages.render import TEMPLATES, Markdown, render
from inference_lab.records.receipts import read_receipt
from inference_lab.records.record import varied
from inference_lab.records.stages import Section, folder, prediction_file

_LIMITS = {  # metric: its column
    **dict.fromkeys(("peak_step_batch", "peak_in_flight"), "value"),
    **dict.fromkeys(("step_prefill_tokens_peak", "peak_waiting", "preemptions"), "median"),
    **dict.fromkeys(("server_queue_mean", "server_ttft_mean"), "median"),
}


def report(name: str, section: Section) -> str:
    """Return the text of results/<name>/report.md; `section` names its experiments and those unmeasured.

    Raises RecordError when a summary or manifest is missing or torn.
    """
    figures = {each["experiment"]: each["figures"] for each in section["experiments"]}
    manifests = {each: read_receipt(Path(folder(each), "manifest.json")) for each in figures}
    return render(
        TEMPLATES / "report.md.j2",
        name=name,
        experiments=[
            _facts(each, manifest) | {"figures": figures[each]} for each, manifest in manifests.items()
        ],
        kinds=sorted({server["facts"]["kind"] for of in manifests.values() for server in of["servers"]}),
        unmeasured=section["unmeasured"],
        sessions=_sessions(manifests),
        machine=_machine(manifests),
        servers=environment.servers(manifests),
    )


def _facts(experiment: str, manifest: Manifest) -> dict[str, object]:
    """Return what the report says of one experiment."""
    at, prediction = Path(folder(experiment)), load_prediction(Path(prediction_file(experiment)))
    rows = read_summary(at / "summary.csv")
    return {
        "name": experiment,
        "manifest": manifest,
        "axis": varied(manifest)[0],
        "question": prediction.question.strip(),
        "answers": answers(prediction.claims, read_summary(at / "verdicts.csv"), rows),
        "numbers": loads(rows, prediction.claims),
        "limits": limits(manifest, rows),
        "flags": sorted({part for row in rows for part in row["advice"].split(SEPARATOR) if row["flags"]}),
    }


def _sessions(manifests: Mapping[str, Manifest]) -> Markdown:
    """Return when each experiment was measured and what else the machine did then."""
    lines: list[dict[str, str]] = []
    for name, manifest in manifests.items():
        starts = sorted(s["facts"]["started_s"] for s in manifest["servers"] if "started_s" in s["facts"])
        started = " to ".join(dict.fromkeys(f"{seconds:.3g}" for seconds in (*starts[:1], *starts[-1:])))
        lines.append({"experiment": name, **environment.session(manifest), "server started in, s": started})
    head = dict.fromkeys(column for line in lines for column in line)
    return compact({c.replace("_", " "): [line.get(c, "") for line in lines] for c in head}, kept=1)


def _machine(manifests: Mapping[str, Manifest]) -> list[Fact]:
    """Return the facts of the machine and the experiments they hold for."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, manifest in manifests.items():
        for fact in environment.machine(manifest).items():
            found.setdefault(fact, []).append(name)
    return [(*fact, "all" if len(of) == len(manifests) else ", ".join(of)) for fact, of in found.items()]


def limits(manifest: Manifest, rows: Sequence[SummaryRow]) -> dict[str, list[str]]:
    """Return what was at its bound, by the steps and the queue of the server, and at which values."""
    axis, values = varied(manifest)
    found: dict[str, list[str]] = {}
    for value in map(str, values):
        number: dict[str, float | None] = {}
        for metric, column in _LIMITS.items():
            row = pick(rows, {"metric": metric, axis: value}, "summary.csv")
            number[metric] = row.number(column) if row else None
        reached = _limit(number, {**manifest["conditions"]["fixed"], axis: float(value)})
        found.setdefault(reached, []).append(value)
    return found


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
