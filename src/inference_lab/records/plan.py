"""The plan of a checkout: every step of its config, in the order of the data, and why each would run.

    sources + pins + section -> tests -> measure -> summary -> figure, analysis -> report

Whether one step is current, its receipt says.
"""

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from inference_lab.errors import ConfigError
from inference_lab.records.digests import PINS_FILE, SOURCE_ROOT, Sources
from inference_lab.records.files import JSON, canonical
from inference_lab.records.receipts import State
from inference_lab.records.stages import TESTS, VERIFIED_RECEIPT, Experiment, Step, step


class Asked(NamedTuple):
    """What the command line forces: rule names and files of -R, --forceall."""

    names: frozenset[str] = frozenset()
    everything: bool = False


class Plan:
    """The steps of a config, their states, and what the command line forces."""

    def __init__(self, config: JSON, asked: Asked | None = None) -> None:
        self.experiments: dict[str, Experiment] = {}
        for name, section in config["experiments"].items():
            # Each section as its command gets it, by its canonical JSON: the order of keys decides nothing.
            its = json.loads(canonical(section))
            manual, folder = its.get("refresh") == "manual", its.get("own_folder")
            self.experiments[name] = Experiment(name, its["measure"], its["judge"], manual, folder)
        self.asked = asked or Asked()
        self.sources = Sources()
        self._states: dict[str, State] = {}
        self._why: dict[str, list[str]] = {}

    def step(self, stage: str, experiment: str = "", figure: str = "") -> Step:
        """Return the step of a stage. Raises ConfigError for what the config does not name."""
        if stage == "tests":
            return TESTS
        if stage == "verify":
            return self.verify_step()
        if stage == "report" and (members := self.reports().get(experiment)):
            waiting = [name for name in members if self.waits_to_be_asked(name)]
            ready = [name for name in members if name not in waiting]
            about = [
                {"experiment": its, "figures": list(self.experiments[its].judge["figures"])} for its in ready
            ]
            return step(stage, experiment, {"experiments": about, "unmeasured": waiting})
        return self._experiment(experiment).step(stage, figure)

    def _experiment(self, name: str) -> Experiment:
        if name not in self.experiments:
            raise ConfigError(f"no experiment {name!r} in the config; it has {', '.join(self.experiments)}")
        return self.experiments[name]

    def steps(self, *experiments: str) -> list[Step]:
        """Return every step of the named experiments, of all when none is named, in the order of the data."""
        return [step for name in experiments or self.experiments for step in self._experiment(name).steps()]

    def reports(self) -> dict[str, list[str]]:
        """Return the experiments that each report is about, sorted, by its name."""
        members: dict[str, list[str]] = {}
        for name, experiment in sorted(self.experiments.items()):
            if report := experiment.judge.get("report"):
                members.setdefault(report, []).append(name)
        return members

    def reports_of(self, experiments: Iterable[str]) -> list[Step]:
        """Return the step of each report about one of these experiments that is measured or asked for."""
        ready = {name for name in experiments if not self.waits_to_be_asked(name)}
        return [self.step("report", name) for name, about in self.reports().items() if ready & set(about)]

    def verify_step(self) -> Step:
        """Return the step that rebuilds what is recorded; it reads the receipts of every record."""
        steps = [*self.steps(*self.verified()), *self.reports_of(self.verified())] if self.verified() else []
        return Step("verify", "", ("verify",), VERIFIED_RECEIPT, reads=tuple(step.receipt for step in steps))

    def verified(self) -> list[str]:
        """Return the automatic experiments, and the manual ones that have every receipt."""
        every = self.experiments.items()
        return [name for name, its in every if not its.manual or all(map(_is_made, its.steps()))]

    @cached_property
    def makers(self) -> dict[str, Step]:
        """By path, the step of this config that makes a file or whose receipt it is."""
        steps = [*self.steps(), *self.reports_of(self.experiments)]
        return {path: step for step in steps for path in (*step.makes, step.receipt)}

    def state(self, step: Step) -> State:
        """Return whether what a step made is current, read once."""
        if step.receipt not in self._states:
            self._states[step.receipt] = State(step, self.sources)
        return self._states[step.receipt]

    def why(self, step: Step) -> list[str]:
        """Return why a step has to run, in words; [] when its result is current.

        Raises RecordError when what is recorded does not match its manifest, ConfigError when a file that the
        step needs is missing and no other step makes it.
        """
        if step.receipt not in self._why:
            reasons = self._why_measured if step.stage == "measure" else self._why_derived
            self._why[step.receipt] = reasons(step)
        return self._why[step.receipt]

    def _why_derived(self, step: Step) -> list[str]:
        self._check_there(step, [path for path in step.reads if path not in self.makers])
        if self._is_asked(step, step.stage):
            return ["asked for"]
        for maker in (self.makers[path] for path in step.reads if path in self.makers):
            if why := self.why(maker):
                return [f"{maker.name}: {', '.join(why)}"]
        self._check_there(step, step.reads)
        return self.state(step).reasons

    def _is_asked(self, step: Step, rule: str) -> bool:
        """Whether it is asked for by name of its rule, by a file of it, or as part of all."""
        return self.asked.everything or not self.asked.names.isdisjoint({rule, step.receipt, *step.makes})

    @staticmethod
    def _check_there(step: Step, paths: Iterable[str]) -> None:
        for path in paths:
            if not Path(path).is_file():
                raise ConfigError(f"{path}: no such file, and {step.name} reads it; write it or restore it")

    def _why_measured(self, step: Step) -> list[str]:
        if not self.experiments[step.experiment].manual:
            return ["asked for"] if self._is_asked(step, "measure") else self.state(step).reasons
        if self._is_asked_by_hand(step):
            return ["asked for"]
        if words := self.waits_to_be_asked(step.experiment):
            raise ConfigError(words)
        if error := self.state(step).error:
            raise error
        return []

    def waits_to_be_asked(self, experiment: str) -> str:
        """Return a note on a manual experiment that nobody measured or asks for now; "" for any other."""
        step = self.step("measure", experiment)
        if not self.experiments[experiment].manual or self._is_asked_by_hand(step) or _is_made(step):
            return ""
        way_out = f"measure it with -R {step.receipt} -- {step.receipt}"
        return f"{experiment} is measured by hand and has no record yet; {way_out}"

    def _is_asked_by_hand(self, step: Step) -> bool:  # --forceall is no request for what takes hours
        return not self.asked.names.isdisjoint({"measure_manual", step.receipt, *step.makes})

    def links(self, step: Step, *needs: str) -> list[str]:
        """Return every file the step's job is linked to: sources, pins, what it reads and needs."""
        # Verification depends on every source: a list of them in each plan helps nobody.
        sources = () if step.stage == "verify" else step.sources(self.sources)
        return [*sources, *step.reads, *needs, PINS_FILE]


def _is_made(step: Step) -> bool:
    return Path(step.receipt).exists()


def kept(reasons: Sequence[str]) -> str:
    """Return what to say of a manual record that is not of this checkout: it is kept, nothing is wrong."""
    sources = [why for why in reasons if why.startswith(f"{SOURCE_ROOT}/")]
    unknown = [why for why in reasons if why.endswith("was not recorded")]
    files = "1 file differs" if len(sources) == 1 else f"{len(sources)} files differ"
    notes = [f"measured by an earlier source ({files})"] if sources else []
    notes += [f"{len(unknown)} files that decide are not in its manifest"] if unknown else []
    return f"kept: {'; '.join([*notes, *(why for why in reasons if why not in (*sources, *unknown))])}"
