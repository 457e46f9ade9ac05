"""Receipts: whether what a step recorded is current.

Answers: is this result current, and if not, why? Decides by digests alone; times never count. Knows no
statistics and no Snakemake. Every path is relative to the checkout, which is the working directory.
"""

import os
import shlex
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from inference_lab.errors import ConfigError, RecordError
from inference_lab.records.digests import Sources
from inference_lab.records.files import Conflicted, read_json, sha256_file, sha256_value
from inference_lab.records.installed import ran_elsewhere
from inference_lab.records.stages import STAGES, TESTS_RECEIPT, Step

# What is written and how. Raised when a receipt or raw file changes its form or `records` its meaning.
# 1  2026-11-30  the first form
SCHEMA = 1


def seal(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the receipt with a digest of its own content, which shows that one was edited."""
    body = {key: value for key, value in receipt.items() if key != "digest"}
    return {**body, "digest": sha256_value(body)}


def receipt_of(step: Step, inputs: Mapping[str, str], pins: Mapping[str, str]) -> dict[str, Any]:
    """Return the unsealed receipt of a step whose files are in place; `inputs` as they were at its start."""
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
    """Read a receipt whose seal holds. Raises RecordError when it is missing, torn or was edited."""
    receipt = read_json(path)
    expected = receipt.get("digest")
    try:
        digest = seal(receipt)["digest"]
    except ValueError as error:  # NaN or a lone surrogate, which no canonical JSON has
        digest = f"none ({error})"
    if digest != expected:
        raise RecordError(
            f"{path}: its content was edited: it has sha256 {expected}, found {digest}; {ways_out(path)}"
        )
    if receipt.get("schema") == SCHEMA:
        from inference_lab.records.forms import check_receipt  # pydantic, which no measuring process loads

        try:
            check_receipt(path, receipt)
        except ConfigError as error:
            raise RecordError(f"{error}; {ways_out(path)}") from None
    return receipt


def ways_out(path: Path) -> str:
    """Return how to get on when a recorded file does not match its manifest."""
    at = shlex.quote(path.parent.as_posix())
    again = f" (snakemake -R {at}/manifest.json -- all)" if path.match("results/*/manifest.json") else ""
    return f"restore it (git stash push -- {at} keeps what is there now) or measure again{again}"


def leads_out(path: Path) -> bool:
    """Return whether a file is reached through a link that leaves this checkout.

    A path outside of the checkout, such as a load's, is held to its own folder.
    """
    real, lexical = os.path.realpath(path), os.path.normpath(path.absolute())
    here = os.path.realpath(".")
    inside = lexical.startswith(f"{os.path.abspath('.')}/")  # noqa: PTH100  (many paths in each plan)
    home = here if inside else os.path.realpath(path.parent)
    return not real.startswith(f"{home}/")


def check_outputs(manifest_path: Path, manifest: Mapping[str, Any], sources: Sources) -> None:
    """Raise RecordError when a file of a record is missing, a link out of the checkout, or another one."""
    for file in (manifest_path, *map(manifest_path.with_name, manifest["outputs"])):
        if leads_out(file):
            raise RecordError(
                f"{file}: is reached by a link to {os.path.realpath(file)}, outside of this checkout;"
                " a record consists of files here: copy them in place of the link"
            )
    for name, made in manifest["outputs"].items():
        file = manifest_path.parent / name
        if not file.is_file():
            raise RecordError(f"{file}: missing, and {manifest_path} names it; {ways_out(manifest_path)}")
        if (digest := sources.file(file.as_posix())) != made["sha256"]:
            raise RecordError(
                f"{file}: differs from {manifest_path}: expected sha256 {made['sha256']}, found {digest};"
                f" {ways_out(manifest_path)}"
            )


def tests_ran_elsewhere() -> bool:
    """Return whether the tests' receipt is whole and from another platform or other versions."""
    try:
        return ran_elsewhere(read_receipt(Path(TESTS_RECEIPT)))
    except RecordError:  # none, or torn by a merge: the tests run anyway
        return False


def changes(step: Step, receipt: Mapping[str, Any], sources: Sources) -> list[str]:
    """Return what a step reads now that its receipt did not read, in words; [] when all is the same."""
    if receipt.get("schema") != SCHEMA:
        return [f"records have form {SCHEMA} now, this one {receipt.get('schema')}"]
    was, now = receipt["inputs"], step.inputs(sources)
    part = STAGES[step.stage].part if step.stage in STAGES else ""
    words = {"section": f"its {part}: part", "checkout": "the checkout or its Python"}
    reasons = [f"{words.get(k, k)} changed{_mark(k)}" for k in now if k in was and was[k] != now[k]]
    reasons += [f"{k} was not recorded" if k in step.reads else f"{k} is new" for k in now if k not in was]
    reasons += [f"{k} is gone" for k in was if k not in now]
    pinned_then, pinned_now = receipt["pins"], step.pins(sources)
    for name in sorted(pinned_then | pinned_now):
        then, today = pinned_then.get(name, "none"), pinned_now.get(name, "none")
        if then != today:
            reasons.append(f"{name} {then} -> {today}")
    return reasons


def _mark(path: str) -> str:
    """Return a note on a file that a spreadsheet or an editor marked: the change is not to be seen."""
    if not path.startswith("predictions/"):
        return ""
    with Path(path).open("rb") as file:
        marked = file.read(3) == b"\xef\xbb\xbf"
    return " (it begins with a byte-order mark, U+FEFF: save it as UTF-8 without one)" if marked else ""


class State:
    """Whether what a step made is current, by its receipt and the files it names.

    `error` is set when a record is not whole: no reason is given then.
    """

    def __init__(self, step: Step, sources: Sources) -> None:
        self.step, self._sources = step, sources
        self.receipt: dict[str, Any] | None = None
        self.error: RecordError | None = None
        self._unreadable = ""  # why there is no receipt
        path = Path(step.receipt)
        try:
            if path.exists():
                self.receipt = read_receipt(path)
            else:
                self._unreadable = "no record yet" if step.stage == "measure" else "not made yet"
            if step.stage == "measure" and self.receipt is not None:
                check_outputs(path, self.receipt, sources)
                self._check_origin(self.receipt)
        except RecordError as error:
            conflicted = isinstance(error, Conflicted)
            what = "holds git's conflict markers" if conflicted else "was edited"
            self.receipt, self._unreadable = None, f"{path} {what}"
            if step.stage == "measure":
                self.error = error

    def _check_origin(self, receipt: Mapping[str, Any]) -> None:
        if self.not_its_own:
            raise RecordError(
                f"{self.step.receipt}: {self.not_its_own[0]}; {ways_out(Path(self.step.receipt))}"
            )

    @cached_property
    def not_its_own(self) -> list[str]:
        """What a receipt says of the step that wrote it, where that is another step than this one."""
        if self.receipt is None or self.step.own_load:  # a load records the words it was given
            return []
        expected = {
            "stage": self.step.stage,
            "experiment": self.step.experiment or None,
            "command": list(self.step.command),
        }
        return [
            f"its {key} is {self.receipt.get(key)!r}, the step's is {value!r}"
            for key, value in expected.items()
            if self.receipt.get(key) != value
        ]

    @cached_property
    def files(self) -> dict[str, str | None]:
        """`{path: recorded sha256}` of each file that the step made, None where its receipt lacks it."""
        outputs = self.receipt["outputs"] if self.receipt else {}
        if self.step.stage == "measure":
            return {(self.step.folder / name).as_posix(): made["sha256"] for name, made in outputs.items()}
        return {path: outputs.get(path, {}).get("sha256") for path in self.step.makes}

    def digest(self, path: str) -> str | None:
        """Return the sha256 of a file as it is now, None when it is missing."""
        return self._sources.file(path) if Path(path).is_file() else None

    @cached_property
    def reasons(self) -> list[str]:
        """Why the step is out of date, in words; [] when it is current."""
        if self.receipt is None:
            return [self._unreadable]
        return [*self.input_reasons, *self._output_reasons()]

    @cached_property
    def input_reasons(self) -> list[str]:
        """What the step reads now that it did not read when it was recorded."""
        return [] if self.receipt is None else changes(self.step, self.receipt, self._sources)

    def _output_reasons(self) -> list[str]:
        reasons = list(self.not_its_own)
        if self.step.stage == "measure":  # checked when the receipt was read
            return reasons
        for path, recorded in self.files.items():
            if leads_out(Path(path)):
                reasons.append(f"{path} is a link out of this checkout")
            elif (digest := self.digest(path)) is None:
                reasons.append(f"{path} is missing")
            elif digest != recorded:
                reasons.append(f"{path} was edited by hand")
        return reasons
