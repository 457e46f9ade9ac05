"""Receipts: is what a step recorded current, and if not, why? Decided by digests alone; times never count.

Every path is relative to the checkout, which is the working directory.
"""

import os
import shlex
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from inference_lab.errors import ConfigError, RecordError
from inference_lab.records.digests import Sources
from inference_lab.records.files import JSON, Conflicted, read_json, sha256_file, sha256_value
from inference_lab.records.installed import ran_elsewhere
from inference_lab.records.stages import STAGES, TESTS_RECEIPT, Step

# What is written and how. Raised when a receipt or raw file changes its form or `records` its meaning.
# 1  2026-11-30  the first form
SCHEMA = 1


def seal(receipt: JSON) -> JSON:
    """Return the receipt with a digest of its own content, which shows that one was edited."""
    body = {key: value for key, value in receipt.items() if key != "digest"}
    return {**body, "digest": sha256_value(body)}


def receipt_of(step: Step, inputs: Mapping[str, str], pins: Mapping[str, str]) -> JSON:
    """Return the unsealed receipt of a step whose files are in place; `inputs` as they were at its start."""
    outputs = {path: {"sha256": sha256_file(Path(path))} for path in step.makes}
    return {"schema": SCHEMA, **_identity(step), "inputs": inputs, "pins": pins, "outputs": outputs}


def _identity(step: Step) -> JSON:
    return {"stage": step.stage, "experiment": step.experiment or None, "command": list(step.command)}


def read_receipt(path: Path) -> JSON:
    """Read a receipt whose seal holds. Raises RecordError when it is missing, torn or was edited."""
    receipt = read_json(path)
    try:
        digest = seal(receipt)["digest"]
    except ValueError as error:  # NaN or a lone surrogate, which no canonical JSON has
        digest = f"none ({error})"
    if digest != (expected := receipt.get("digest")):
        words = f"its content was edited: it has sha256 {expected}, found {digest}"
        raise RecordError(f"{path}: {words}; {ways_out(path)}")
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
    """Return whether a file is reached by a link out of this checkout; of one outside, out of its folder."""
    here = os.path.realpath(".")
    inside = os.path.normpath(path.absolute()).startswith(f"{os.path.abspath('.')}/")  # noqa: PTH100  (many)
    return not os.path.realpath(path).startswith(f"{here if inside else os.path.realpath(path.parent)}/")


def check_outputs(manifest_path: Path, manifest: JSON, sources: Sources) -> None:
    """Raise RecordError when a file of a record is missing, a link out of the checkout, or another one."""
    recorded = {manifest_path.with_name(name): made["sha256"] for name, made in manifest["outputs"].items()}
    for file in (manifest_path, *recorded):
        if leads_out(file):
            words = f"is a link to {os.path.realpath(file)}, outside of this checkout"
            raise RecordError(f"{file}: {words}; copy that file in place of the link")
    for file, expected in recorded.items():
        if not file.is_file():
            raise RecordError(f"{file}: missing, and {manifest_path} names it; {ways_out(manifest_path)}")
        if (found := sources.file(file.as_posix())) != expected:
            words = f"differs from {manifest_path}: expected sha256 {expected}, found {found}"
            raise RecordError(f"{file}: {words}; {ways_out(manifest_path)}")


def tests_ran_elsewhere() -> bool:
    """Return whether the tests' receipt is whole and from another platform or other versions."""
    try:
        return ran_elsewhere(read_receipt(Path(TESTS_RECEIPT)))
    except RecordError:  # none, or torn by a merge: the tests run anyway
        return False


def changes(step: Step, receipt: JSON, sources: Sources) -> list[str]:
    """Return what a step reads now that its receipt did not read, in words; [] when all is the same."""
    if receipt.get("schema") != SCHEMA:
        return [f"records have form {SCHEMA} now, this one {receipt.get('schema')}"]
    was, now = receipt["inputs"], step.inputs(sources)
    part = STAGES[step.stage].part if step.stage in STAGES else ""
    words = {"section": f"its {part}: part", "checkout": "the checkout or its Python"}
    reasons = [f"{words.get(k, k)} changed{_mark(k)}" for k in now if k in was and was[k] != now[k]]
    reasons += [f"{k} was not recorded" if k in step.reads else f"{k} is new" for k in now if k not in was]
    reasons += [f"{k} is gone" for k in was if k not in now]
    then, today = receipt["pins"], step.pins(sources)
    both = ((name, then.get(name, "none"), today.get(name, "none")) for name in sorted(then | today))
    return reasons + [f"{name} {old} -> {new}" for name, old, new in both if old != new]


def _mark(path: str) -> str:
    marked = path.startswith("predictions/") and Path(path).read_bytes().startswith(b"\xef\xbb\xbf")
    return " (it begins with a byte-order mark, U+FEFF: save it as UTF-8 without one)" if marked else ""


class State:
    """Whether what a step made is current, by its receipt and the files it names.

    `error` is set when a record is not whole; asking for `reasons` raises it.
    """

    def __init__(self, step: Step, sources: Sources) -> None:
        self.step, self._sources = step, sources
        self.receipt: JSON | None = None
        self.error: RecordError | None = None
        self._no_receipt = "no record yet" if step.stage == "measure" else "not made yet"
        path = Path(step.receipt)
        if not path.exists():
            return
        try:
            receipt = read_receipt(path)
            if step.stage == "measure":
                check_outputs(path, receipt, sources)
                for words in self._of_another_step(receipt):
                    raise RecordError(f"{path}: {words}; {ways_out(path)}")
            self.receipt = receipt
        except RecordError as error:
            what = "holds git's conflict markers" if isinstance(error, Conflicted) else "was edited"
            self._no_receipt = f"{path} {what}"
            self.error = error if step.stage == "measure" else None

    def _of_another_step(self, receipt: JSON) -> list[str]:
        if self.step.own_load:  # a load records the words it was given
            return []
        both = ((key, receipt.get(key), value) for key, value in _identity(self.step).items())
        return [f"its {key} is {was!r}, the step's is {now!r}" for key, was, now in both if was != now]

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
        """Why the step is out of date, in words; [] when it is current. Raises `error`."""
        if self.error:
            raise self.error
        if self.receipt is None:
            return [self._no_receipt]
        if self.step.stage == "measure":  # its files were checked when the receipt was read
            return self.input_reasons
        return [*self.input_reasons, *self._of_another_step(self.receipt), *self._output_reasons()]

    @cached_property
    def input_reasons(self) -> list[str]:
        """What the step reads now that it did not read when it was recorded."""
        return [] if self.receipt is None else changes(self.step, self.receipt, self._sources)

    def _output_reasons(self) -> list[str]:
        reasons: list[str] = []
        for path, recorded in self.files.items():
            if leads_out(Path(path)):
                reasons.append(f"{path} is a link out of this checkout")
            elif (digest := self.digest(path)) is None:
                reasons.append(f"{path} is missing")
            elif digest != recorded:
                reasons.append(f"{path} was edited by hand")
        return reasons
