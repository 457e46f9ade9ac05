"""One report of several experiments on a served system: what was run, what limits what, what was not shown.

Answers from summaries, verdicts, predictions and manifests alone: a fresh clone writes the same bytes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_lab.analysis.statistics import short, with_interval
from inference_lab.analysis.summary_table import SEPARATOR, Row, bounds, number, pick, read_summary
from inference_lab.analysis.surroundings import environment_of
from inference_lab.config.prediction import load_prediction
from inference_lab.pages.render import table, verdict_value
from inference_lab.records.receipts import read_receipt
from inference_lab.records.stages import folder, prediction_file

_SHOWN = (  # metric, column, what it is called in a table
    ("output_tokens_per_s", "median", "output tokens/s"),
    ("ttft", "p50_ms", "TTFT P50, ms"),
    ("ttft", "p95_ms", "TTFT P95, ms"),
    ("itl", "p50_ms", "ITL P50, ms"),
    ("itl", "p95_ms", "ITL P95, ms"),
    ("server_queue_mean", "median", "queue of the server, ms"),
    ("peak_waiting", "median", "most waiting"),
    ("peak_in_flight", "value", "most in flight"),
    ("peak_step_batch", "value", "largest batch"),
    ("mean_step_batch", "value", "mean batch"),
    ("prefill_chunks_a_request", "median", "chunks a prompt"),
    ("step", "p50_ms", "step P50, ms"),
    ("goodput_per_s", "median", "goodput, requests/s"),
    ("prefix_cache_hits", "median", "prefix hits, tokens"),
    ("preemptions", "median", "preempted"),
    ("warmup_ttft", "median", "warm-up by TTFT, requests"),
    ("warmup_itl", "median", "warm-up by ITL, requests"),
    ("kv_cache_tokens", "value", "KV cache said, tokens"),
    ("kv_capacity_tokens", "value", "KV cache by formula, tokens"),
)
_MACHINE = ("cpu_model", "cores", "kernel", "python", "others_used_cores", "unknown_looks", "steal_cores",
            "waited_for_quiet_s")  # fmt: skip
_SERVER = ("kind", "version", "arguments", "kv_cache_tokens", "block_size", "clock")


@dataclass(frozen=True)
class About:
    """What was found in one experiment."""

    name: str
    manifest: Mapping[str, Any]
    rows: Sequence[Row]
    verdicts: Sequence[Row]
    question: str
    figures: Sequence[str]

    @property
    def axis(self) -> str:
        """The varied condition."""
        return next(iter(self.manifest["conditions"]["vary"]))

    @property
    def values(self) -> list[str]:
        """The values of the varied condition, as text."""
        return [str(value) for value in self.manifest["conditions"]["vary"][self.axis]]

    def shown(self, metric: str, column: str, value: str) -> str:
        """A number of a cell with its interval where it has one; empty where it is undefined."""
        row = pick(self.rows, {"metric": metric, self.axis: value}, self.name)
        if row is None or not row[column]:
            return ""
        interval = bounds(row, column, self.name)
        found = number(row, column, self.name)
        return short(found or 0.0) if interval == (None, None) else with_interval(found, interval)

    def numeric(self, metric: str, column: str, value: str) -> float | None:
        """A number of a cell; None where it is undefined."""
        row = pick(self.rows, {"metric": metric, self.axis: value}, self.name)
        return None if row is None else number(row, column, self.name)


def report(name: str, section: Mapping[str, Any]) -> str:
    """The text of results/<name>/report.md; `section` names the experiments it is about and those unmeasured.

    Raises RecordError when a summary or manifest is missing or torn.
    """
    about = [_read(**each) for each in section["experiments"]]
    parts = (
        ("Environment", environment(about)),
        ("What was asked, and what came of it", _answers(about)),
        ("What was found", (text for each in about for text in _found(each))),
        ("What limits what", (text for each in about for text in _limits(each))),
        ("What was predicted, and the verdicts", (text for each in about for text in _verdicts(each))),
        ("What is not shown", _boundary(about, section["unmeasured"])),
        ("How to repeat it", _repeat(about, name)),
    )
    lines = [f"# {name}: a real system under the harness", ""]
    for title, texts in parts:
        lines += [f"## {title}", "", *(line for text in texts for line in (text, ""))]
    return "\n".join(lines)


def _read(experiment: str, figures: Sequence[str]) -> About:
    at = Path(folder(experiment))
    verdicts = read_summary(at / "verdicts.csv")
    question = load_prediction(Path(prediction_file(experiment))).question.strip()
    manifest = read_receipt(at / "manifest.json")
    return About(experiment, manifest, read_summary(at / "summary.csv"), verdicts, question, figures)


def environment(about: Sequence[About]) -> Iterator[str]:
    """One table: each fact of a machine or server, its value, and for which experiments or values it held."""
    lines: list[list[str]] = []
    for each in about:
        environment = environment_of(each.manifest)
        told = {name: environment[name] for name in _MACHINE if name in environment}
        git = each.manifest.get("git") or {}
        told["measured"] = f"{each.manifest['started_at']} to {each.manifest['finished_at']}"
        told["source"] = f"{str(git.get('commit', 'unknown'))[:12]}{', changed' * bool(git.get('dirty'))}"
        lines += [[name.replace("_", " "), _words(value), each.name] for name, value in told.items()]
        lines += _servers(each)
    said: dict[tuple[str, str], list[str]] = {}
    for name, value, experiment in lines:
        said.setdefault((name, value), []).append(experiment)
    names, experiments = list(dict.fromkeys(name for name, _ in said)), [each.name for each in about]
    rows = [
        [name, value, "all" if which == experiments else ", ".join(which)]
        for name in names
        for (named, value), which in said.items()
        if named == name
    ]
    yield table(rows, ["", "", "of"])


def _servers(each: About) -> Iterator[list[str]]:
    """(fact, value, of what it holds): of the whole experiment, or of the varied values it was found at."""
    servers: Sequence[Mapping[str, Any]] = each.manifest["servers"]
    started = sorted(told["facts"]["started_s"] for told in servers if "started_s" in told["facts"])
    if started:
        ends = dict.fromkeys(f"{seconds:.3g}" for seconds in (started[0], started[-1]))
        yield ["server started s", " to ".join(ends), each.name]
    found: dict[tuple[str, str], list[str]] = {}
    for told in servers:
        facts: Mapping[str, Any] = told["facts"]
        digests = (facts.get("model") or {}).get("sha256") or {}
        named = {f"server {name}": facts[name] for name in _SERVER if name in facts}
        if digests:
            named["model sha256"] = {file: digest[:12] for file, digest in digests.items()}
        value = told["settings"].get(each.axis)
        where = f"server {told['server']}" if value is None else f"{each.axis} {value}"
        for name, fact in named.items():
            found.setdefault((name.replace("_", " "), _words(fact)), []).append(where)
    for (name, fact), at in found.items():
        whole = len(at) == len(servers)
        yield [name, fact, each.name if whole else f"{each.name} ({', '.join(dict.fromkeys(at))})"]


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(each)}" for key, each in value.items())  # pyright: ignore
    if isinstance(value, list):
        return " ".join(map(str, value))  # pyright: ignore
    return "not known" if value is None else str(value)


def _answers(about: Sequence[About]) -> Iterator[str]:
    rows: list[list[str]] = []
    for each in about:
        counts = Counter(verdict["verdict"] for verdict in each.verdicts)
        validity = each.manifest["validity"]
        broken = f"INVALID: {'; '.join(validity['reasons'])}. " * (not validity["valid"])
        rows.append(
            [each.name, each.question, broken + ", ".join(f"{n} {name}" for name, n in counts.items())]
        )
    yield table(rows, ["experiment", "question", "claims"])


def _found(each: About) -> Iterator[str]:
    conditions = each.manifest["conditions"]
    fixed = ", ".join(f"{name} {value}" for name, value in conditions["fixed"].items())
    yield f"### {each.name}"
    yield (
        f"Varied: {each.axis}. Fixed: {fixed}. Servers started: {len(each.manifest['servers'])}; loads of"
        f" each value and server: {conditions['rounds']}. 95% intervals; `open` where n cannot bound."
    )
    columns = [
        (head, cells)
        for metric, column, head in _SHOWN
        if any(cells := [each.shown(metric, column, value) for value in each.values])
    ]
    rows = [[value, *(cells[at] for _, cells in columns)] for at, value in enumerate(each.values)]
    yield table(rows, [each.axis, *(head for head, _ in columns)])
    for figure in each.figures:
        yield f"![{each.name}: {figure}](../{each.name}/{figure})"
    if advice := {part for row in each.rows for part in row["advice"].split(SEPARATOR) if row["flags"]}:
        yield "\n".join(f"- Flagged: {part}" for part in sorted(advice))


def _limits(each: About) -> Iterator[str]:
    """Of every value: what of what the server allows was reached, by its steps and its queue."""
    rows: list[list[str]] = []
    for value in each.values:
        seen = {name: each.numeric(name, column, value) for name, column in _LIMITS}
        settings = {**each.manifest["conditions"]["fixed"], each.axis: float(value)}
        if seen["peak_step_batch"] is None:
            rows.append([value, "", "", "unknown: the steps of the server are not seen from here"])
            continue
        queued, ttft = seen["server_queue_mean"], seen["server_ttft_mean"]
        share = "" if queued is None or not ttft else f"{100 * queued / ttft:.0f}%"
        batch = f"{seen['peak_step_batch']:g} of {settings['max_num_seqs']:g}"
        rows.append([value, batch, share, _limit(seen, settings)])
    yield f"### {each.name}"
    yield table(rows, [each.axis, "largest batch", "queue in the server's TTFT", "limited by"])


_LIMITS = (
    ("peak_step_batch", "value"),
    ("peak_in_flight", "value"),
    ("step_prefill_tokens_peak", "median"),
    ("peak_waiting", "median"),
    ("preemptions", "median"),
    ("server_queue_mean", "median"),
    ("server_ttft_mean", "median"),
)


def _limit(seen: Mapping[str, float | None], settings: Mapping[str, float]) -> str:
    """What was at its bound, in words: each is read from a recorded number and none excludes another."""
    batch, waiting = seen["peak_step_batch"] or 0, seen["peak_waiting"] or 0
    found: list[str] = []
    if seen["preemptions"]:
        found.append("the KV cache: running requests were preempted")
    if (seen["step_prefill_tokens_peak"] or 0) >= settings["max_num_batched_tokens"]:
        found.append("max_num_batched_tokens: a step was full of prompt tokens")
    if batch >= settings["max_num_seqs"] and waiting:
        found.append(f"max_num_seqs: a full batch, and {waiting:g} waited")
    if not found and batch == seen["peak_in_flight"]:
        found.append("the clients: all that was in flight was in a step")
    return "; ".join(found) or "none of the declared bounds was reached"


def _verdicts(each: About) -> Iterator[str]:
    yield f"### {each.name}"
    rows = [
        [
            verdict["says"],
            f"**{verdict['verdict']}**",
            verdict_value(verdict),
            verdict["n"],
            verdict["reason"],
        ]
        for verdict in each.verdicts
    ]
    yield table(rows, ["claim", "verdict", "value", "n", "reason"])


def _boundary(about: Sequence[About], unmeasured: Sequence[str]) -> Iterator[str]:
    kinds = sorted({told["facts"]["kind"] for each in about for told in each.manifest["servers"]})
    if kinds != ["vllm"]:
        yield f"- Anything of vLLM: these records are of {', '.join(kinds)} servers."
    yield "- Any throughput or latency of a GPU: there is no record of one; what concerns it is Inconclusive."
    yield (
        "- Absolute latency: client, server and engine share the cores of one machine, so each delays the"
        " others. The client's and the server's own numbers stand beside each other, and the calibration"
        " record says what the client's are worth."
    )
    yield (
        "- A trained model or real text: weights are random and prompts are random token ids. Time does not"
        " depend on which tokens they are; what a prefix cache or a user's lengths would do, does."
    )
    yield (
        "- How servers differ from each other: where one server served all loads of a value, the interval"
        " is over its loads. vllm_baseline alone compares fresh servers."
    )
    yield "- A peak between two looks at /metrics: gauges are what single scrapes saw."
    inconclusive = [v["says"] for each in about for v in each.verdicts if v["verdict"] == "Inconclusive"]
    if inconclusive:
        yield "\n".join(f"- Left open: {says}." for says in inconclusive)
    for experiment in unmeasured:
        yield f"- {experiment} was not measured."


def _repeat(about: Sequence[About], name: str) -> Iterator[str]:
    yield "Figures and this report again from what is recorded, on any machine, without the server:"
    yield f"    uv run snakemake --cores 1 {name}"
    yield "Everything from nothing (the first command installs the server in a folder of its own):"
    yield (
        "    uv run python workflow/envs/vllm/install.py\n"
        f"    uv run snakemake --cores 2 -R measure_manual -- {name}"
    )
    rows = [
        [each.name, each.manifest["digest"][:12], *_pins(each.manifest), str(len(each.manifest["sessions"]))]
        for each in about
    ]
    yield table(rows, ["experiment", "manifest", "pins of the server, sha256", "loads"])


def _pins(manifest: Mapping[str, Any]) -> list[str]:
    file = manifest["conditions"].get("environment")
    return [f"`{file}` {manifest['inputs'][file][:12]}" if file else ""]
