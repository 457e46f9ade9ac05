"""The chain of recorded results: whether the receipt of each of its steps still holds.

    sources + pins + section -> tests -> measure -> summary -> figure, analysis -> report

Answers: is this result current, and if not, why? Decides by digests alone; times never count. Knows no
statistics and no Snakemake. Every path is relative to the checkout, which is the working directory.
"""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_lab.errors import ConfigError, RecordError
from inference_lab.records.digests import PINS_FILE, SOURCE_ROOT, Sources
from inference_lab.records.files import Conflicted, canonical, read_json, sha256_file, sha256_value
from inference_lab.records.installed import ran_elsewhere
from inference_lab.records.stages import (
    TESTS_RECEIPT,
    VERIFIED_RECEIPT,
    Step,
    analysis_step,
    figure_step,
    has_module,
    is_load,
    measure_step,
    part_of,
    report_step,
    summary_step,
    tests_step,
)

# What is written and how. Raised when a receipt or raw file changes its form or `records` its meaning.
# 1  2026-11-30  the first form
SCHEMA = 1


def seal(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """The receipt with a digest of its own content, by which an edited one is found out."""
    body = {key: value for key, value in receipt.items() if key != "digest"}
    return {**body, "digest": sha256_value(body)}


def receipt_of(step: Step, inputs: Mapping[str, str], pins: Mapping[str, str]) -> dict[str, Any]:
    """The receipt of a step whose files are all in place, unsealed; `inputs` as they were when it began."""
    return {
        "schema": SCHEMA,
        "stage": step.stage,
        "experiment": step.experiment or None,
        "command": list(step.command),
        "inputs": inputs,
        "pins": pins,
        "outputs": {path: {"sha256": sha256_file(Path(path))} for path in step.makes},
    }


def read_receipt(path: Path) -> dict[str, Any]:
    """A receipt whose seal holds. Raises RecordError when it is missing, torn or was edited."""
    receipt = read_json(path)
    expected = receipt.get("digest")
    try:
        found = seal(receipt)["digest"]
    except ValueError as error:  # NaN or a lone surrogate, which no canonical JSON has
        found = f"none ({error})"
    if found != expected:
        raise RecordError(
            f"{path}: its content was edited: it says sha256 {expected}, found {found}; {ways_out(path)}"
        )
    if receipt.get("schema") == SCHEMA:
        from inference_lab.records.forms import check_receipt  # imports pydantic, for who reads records

        try:
            check_receipt(path, receipt)
        except ConfigError as error:
            raise RecordError(f"{error}; {ways_out(path)}") from None
    return receipt


def ways_out(path: Path) -> str:
    """How to get on when a recorded file does not match its manifest."""
    at = shlex.quote(path.parent.as_posix())
    again = f" (snakemake -R {at}/manifest.json -- all)" if path.match("results/*/manifest.json") else ""
    return f"restore it (git stash push -- {at} keeps what stands there now) or measure again{again}"


def check_outputs(manifest_path: Path, manifest: Mapping[str, Any], sources: Sources) -> None:
    """Raises RecordError when a file a manifest names is missing beside it or has another digest."""
    for name, made in manifest["outputs"].items():
        file = manifest_path.parent / name
        if not file.is_file():
            raise RecordError(f"{file}: missing, and {manifest_path} names it; {ways_out(manifest_path)}")
        if (found := sources.file(file.as_posix())) != made["sha256"]:
            raise RecordError(
                f"{file}: differs from {manifest_path}: expected sha256 {made['sha256']}, found {found};"
                f" {ways_out(manifest_path)}"
            )


def tests_ran_elsewhere() -> bool:
    """Whether the tests' receipt is whole and from another platform or other versions than are here."""
    try:
        return ran_elsewhere(read_receipt(Path(TESTS_RECEIPT)))
    except RecordError:  # none, or torn by a merge: the tests run anyway
        return False


@dataclass(frozen=True)
class Asked:
    """What the command line forces: rule names and files of -R, --forceall."""

    names: frozenset[str] = frozenset()
    everything: bool = False

    def forces(self, step: Step, rule: str) -> bool:
        """Whether `step`, made by `rule`, is asked for by name, by a file it makes, or as part of all."""
        return self.everything or not self.names.isdisjoint({rule, step.receipt, *step.makes})


class Receipts:
    """One walk over the receipts of a checkout: every step, and why it would run."""

    def __init__(self, config: Mapping[str, Any], asked: Asked | None = None) -> None:
        # Each section as its command gets it, by its canonical JSON: the order of keys decides nothing.
        self.experiments: dict[str, dict[str, Any]] = {
            name: json.loads(canonical(section)) for name, section in config["experiments"].items()
        }
        self.asked = asked or Asked()
        self.sources = Sources()
        self._why: dict[str, list[str]] = {}

    def step(self, stage: str, experiment: str = "", figure: str = "") -> Step:
        """The step of a stage. Raises ConfigError for an experiment or figure the config does not name."""
        if stage == "tests":
            return tests_step()
        if stage == "verify":
            return self.verify_step()
        if stage == "report" and (members := self.reports().get(experiment)):
            ready = [name for name in members if not self.waits_to_be_asked(name)]
            figures = {name: list(self.experiments[name]["judge"]["figures"]) for name in ready}
            about = [{"experiment": name, "figures": figures[name]} for name in ready]
            return report_step(experiment, about, [name for name in members if name not in ready])
        if experiment not in self.experiments:
            known = ", ".join(self.experiments)
            raise ConfigError(f"no experiment {experiment!r} in the config; it has {known}")
        section = self.experiments[experiment]
        if stage == "figure":
            return figure_step(experiment, section["judge"], figure)
        make = {
            "measure": measure_step,
            "summary": summary_step,
            "analysis": analysis_step,
        }[stage]
        return make(experiment, section[part_of(stage)])

    def steps(self, experiment: str) -> list[Step]:
        """Every step of an experiment, in the order of the data."""
        first = [self.step("measure", experiment), self.step("summary", experiment)]
        judge = self.experiments[experiment]["judge"]
        figures = [self.step("figure", experiment, figure) for figure in judge.get("figures", {})]
        if is_load(experiment):  # nothing was predicted
            return [*first, *figures]
        return [*first, *figures, self.step("analysis", experiment)]

    def reports(self) -> dict[str, list[str]]:
        """The experiments that each report is about, sorted, by its name: `judge.report` of each of them."""
        found: dict[str, list[str]] = {}
        for experiment, its in sorted(self.experiments.items()):
            if name := its["judge"].get("report"):
                found.setdefault(name, []).append(experiment)
        return found

    def reports_of(self, experiments: Iterable[str]) -> list[Step]:
        """The step of each report about one of these experiments that is measured or asked for."""
        ready = {name for name in experiments if not self.waits_to_be_asked(name)}
        return [self.step("report", name) for name, about in self.reports().items() if ready & set(about)]

    def verify_step(self) -> Step:
        """The step that rebuilds what is recorded and compares; it reads the receipts of every record."""
        steps = [step for experiment in self.verified() for step in self.steps(experiment)]
        steps += self.reports_of(self.verified())
        reads = tuple(step.receipt for step in steps)
        return Step("verify", "", ("verify",), VERIFIED_RECEIPT, makes=(), reads=reads)

    def verified(self) -> list[str]:
        """The experiments `verify_step` is about: automatic ones, and manual ones that have every receipt."""

        def complete(experiment: str) -> bool:
            return all(Path(step.receipt).exists() for step in self.steps(experiment))

        return [name for name in self.experiments if not self.manual(name) or complete(name)]

    def manual(self, experiment: str) -> bool:
        """Whether the experiment measures only when asked for by name."""
        return self.experiments[experiment].get("refresh") == "manual"

    def why(self, step: Step) -> list[str]:
        """Why a step has to run, in words; [] when its result is current.

        Raises RecordError when what is recorded does not match its manifest, ConfigError when a file the
        step needs is missing and no other step makes it.
        """
        if step.receipt not in self._why:
            self._why[step.receipt] = self._reasons(step)
        return self._why[step.receipt]

    def _reasons(self, step: Step) -> list[str]:
        if step.stage == "measure":
            return self._why_measure(step)
        for path in step.reads:  # what no step makes must be there before anything is measured for it
            if path.startswith(("predictions/", "docs/")) and not Path(path).is_file():
                raise ConfigError(f"{path}: no such file, and {step.name} reads it; write it or restore it")
        if self.asked.forces(step, step.stage):
            return ["asked for"]
        for other in self._before(step):
            if why := self.why(other):
                return [f"{other.name}: {', '.join(why)}"]
        for path in step.reads:
            if not Path(path).is_file():
                raise ConfigError(f"{path}: no such file, and {step.name} reads it; write it or restore it")
        return self.differences(step)

    def _before(self, step: Step) -> Iterable[Step]:
        if step.stage == "verify":
            made = set(step.reads)
            every = [other for experiment in self.experiments for other in self.steps(experiment)]
            every += self.reports_of(self.experiments)
            return [other for other in every if other.receipt in made]
        if step.stage == "report":
            return [self.step("analysis", about["experiment"]) for about in step.section["experiments"]]
        earlier = {"summary": "measure", "figure": "summary", "analysis": "summary"}
        before = [self.step(earlier[step.stage], step.experiment)] if step.stage in earlier else []
        if step.stage == "summary" and "calibration" in step.section:
            before.append(self.step("summary", step.section["calibration"]))
        return before

    def waits_to_be_asked(self, experiment: str) -> str:
        """What to tell about a manual experiment that nobody measured or asks for now; "" for any other."""
        step = self.step("measure", experiment)
        if not self.manual(experiment) or self._asked_by_hand(step) or Path(step.receipt).exists():
            return ""
        return (
            f"{experiment} is measured by hand and has no record yet;"
            f" measure it with -R {step.receipt} -- {step.receipt}"
        )

    def _asked_by_hand(self, step: Step) -> bool:
        return Asked(self.asked.names).forces(step, "measure_manual")

    def _why_measure(self, step: Step) -> list[str]:
        manifest = Path(step.receipt)
        if self.manual(step.experiment):
            if self._asked_by_hand(step):
                return ["asked for"]
            if words := self.waits_to_be_asked(step.experiment):
                raise ConfigError(words)
            check_outputs(manifest, read_receipt(manifest), self.sources)
            return []
        if self.asked.forces(step, "measure"):
            return ["asked for"]
        return self.stale_record(step)

    def stale_record(self, step: Step) -> list[str]:
        """Why a record is not of this checkout; [] when it is. Raises RecordError when it is not whole."""
        manifest = Path(step.receipt)
        if not manifest.exists():
            return ["no record yet"]
        receipt = read_receipt(manifest)
        check_outputs(manifest, receipt, self.sources)
        return [] if self.read_only(step.experiment) else self.changed(step, receipt)

    def kept(self, reasons: Sequence[str]) -> str:
        """What to say of a manual record that is not of this checkout: it is kept, and nothing is wrong."""
        sources = [why for why in reasons if why.startswith(f"{SOURCE_ROOT}/")]
        unknown = [why for why in reasons if why.endswith("was not recorded")]
        files = "1 file differs" if len(sources) == 1 else f"{len(sources)} files differ"
        told = [f"measured by an earlier source ({files})"] if sources else []
        told += [f"{len(unknown)} files that decide are not in its manifest"] if unknown else []
        return f"kept: {'; '.join([*told, *(why for why in reasons if why not in (*sources, *unknown))])}"

    def read_only(self, experiment: str) -> bool:
        """Whether an experiment's record stands here and the module that measures it does not.

        Such a checkout can derive everything from the record and measure nothing.
        """
        if about := self.reports().get(experiment):
            return any(map(self.read_only, about))
        step = self.step("measure", experiment)
        return Path(step.receipt).exists() and not all(map(has_module, step.modules))

    def links(self, step: Step, *needs: str) -> list[str]:
        """Every file the step's job is linked to: its sources and pins, what it reads, what it needs."""
        if step.stage == "measure" and self.read_only(step.experiment):
            return []
        # Verification depends on every source: a list of them in each plan would tell nobody anything.
        sources = () if step.stage == "verify" else step.sources(self.sources)
        return [*sources, *step.reads, *needs, PINS_FILE]

    def differences(self, step: Step) -> list[str]:
        """What a derived step's receipt no longer agrees with, in words; [] when it holds."""
        path = Path(step.receipt)
        if not path.exists():
            return ["not made yet"]
        try:
            receipt = read_receipt(path)
        except Conflicted:
            return [f"{path.as_posix()} holds git's conflict markers"]
        except RecordError:
            return [f"{path.as_posix()} was edited"]
        return [*self.changed(step, receipt), *self._remake(step, receipt)]

    def changed(self, step: Step, receipt: Mapping[str, Any]) -> list[str]:
        """What a step reads now that its receipt did not read, in words; [] when all is the same."""
        if receipt.get("schema") != SCHEMA:
            return [f"records have form {SCHEMA} now, this one {receipt.get('schema')}"]
        was, now = receipt["inputs"], step.inputs(self.sources)
        words = {"section": f"its {part_of(step.stage)}: part", "checkout": "the checkout or its Python"}
        reasons = [f"{words.get(k, k)} changed" for k in now if k in was and was[k] != now[k]]
        reasons += [
            f"{k} was not recorded" if k in step.reads else f"{k} is new" for k in now if k not in was
        ]
        reasons += [f"{k} is gone" for k in was if k not in now]
        pinned_then, pinned_now = receipt["pins"], step.pins(self.sources)
        for name in sorted(pinned_then | pinned_now):
            then, today = pinned_then.get(name, "none"), pinned_now.get(name, "none")
            if then != today:
                reasons.append(f"{name} {then} -> {today}")
        return reasons

    def _remake(self, step: Step, receipt: Mapping[str, Any]) -> list[str]:
        reasons: list[str] = []
        for name in step.makes:
            made = receipt["outputs"].get(name)
            if not Path(name).is_file():
                reasons.append(f"{name} is missing")
            elif made is None or self.sources.file(name) != made["sha256"]:
                reasons.append(f"{name} was edited by hand")
        return reasons
