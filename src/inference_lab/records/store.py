"""Putting results in place and taking them out again: whole, in order, the receipt last."""

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from itertools import chain, count
from pathlib import Path
from typing import Any

from inference_lab.errors import RecordError
from inference_lab.records.digests import Sources
from inference_lab.records.files import (
    JSON,
    json_text,
    sha256_file,
    staging,
    sync_folder,
    write_file,
    write_json,
    write_through,
)
from inference_lab.records.receipts import (
    SCHEMA,
    State,
    check_outputs,
    read_receipt,
    receipt_of,
    seal,
    ways_out,
)
from inference_lab.records.record import Record
from inference_lab.records.samples import CONTROLS, read_rows, read_samples
from inference_lab.records.stages import Step
from inference_lab.stream_load.requests import read_lines, read_requests, read_truth

_ROOM = 2**20  # bytes that must be free before measuring, where no record stands that says how many


def make(step: Step, produce: Callable[[], Mapping[str, str]], sources: Sources | None = None) -> bool:
    """Whether the step's files were made anew; False when its receipt holds already and nothing was done.

    `produce` returns the text of every file the step makes. Nothing is written when an input changes
    meanwhile: the digests are taken before, in `sources`, and after.
    """
    sources = sources or Sources()
    before, pins = step.inputs(sources), step.pins(sources)
    if not State(step, sources).reasons:
        return False
    texts = produce()
    if step.inputs(Sources()) != before:
        raise RecordError(f"{step.name}: an input changed while it ran; nothing was recorded, run it again")
    for path in step.makes:
        write_file(Path(path), texts[path])
    write_json(Path(step.receipt), seal(receipt_of(step, before, pins)))
    return True


def load_record(manifest_path: Path, sources: Sources | None = None) -> Record:
    """The record a manifest describes, with every digest and row count checked.

    Raises RecordError naming file, expected and found digest when anything differs.
    """
    manifest = read_receipt(manifest_path)
    if manifest.get("schema") != SCHEMA:
        words = f"has form {manifest.get('schema')}, this version reads {SCHEMA}"
        raise RecordError(f"{manifest_path}: {words}; measure again")
    check_outputs(manifest_path, manifest, sources or Sources())
    parts: dict[str, Any] = {}
    for name, made in manifest["outputs"].items():
        file = manifest_path.with_name(name)
        part, found = _part(file, manifest["kind"])
        if len(found) != made["rows"]:
            words = f"{len(found)} rows, its manifest counts {made['rows']}"
            raise RecordError(f"{file}: {words}; {ways_out(manifest_path)}")
        if part:  # the controls of what timed nothing are a header alone
            parts[part] = found
    return Record(manifest["experiment"], manifest, **parts)


def _part(file: Path, kind: str) -> tuple[str, Any]:
    """(field of Record, rows) of one raw file, by its name and the kind of its record."""
    if file.name.endswith(CONTROLS):
        return ("controls", read_samples(file, controls=True)) if kind == "timing" else ("", read_rows(file))
    if file.name == "requests.jsonl":
        return "requests", read_requests(file)
    if file.suffix == ".jsonl":
        return file.stem, read_truth(file) if file.name == "truth.jsonl" else read_lines(file)
    return ("samples", read_samples(file)) if kind == "timing" else ("rows", read_rows(file))


def check_writable(manifest_path: Path) -> None:
    """Raises RecordError when no record can be put there: better before measuring than after.

    As much as the record that stands there takes is written and renamed, where the samples will be.
    """
    at = nearest = manifest_path.parent
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            at.stat()  # too long a name, a folder that may not be entered
        while not nearest.exists():
            nearest = nearest.parent
        size = sum(file.stat().st_size for file in at.glob("*") if file.is_file())
        trial = staging(nearest / manifest_path.name)
        try:
            write_through(trial, bytes(max(size, _ROOM)))
            trial.replace(staging(trial))
        finally:
            trial.unlink(missing_ok=True)
            staging(trial).unlink(missing_ok=True)
    except OSError as error:
        words = f"cannot be written ({nearest}: {error.strerror})"
        raise RecordError(f"{at}: {words}; make room or name another place") from None


def replace_record(
    manifest_path: Path, files: Mapping[str, str], rows: Mapping[str, int], manifest: JSON
) -> Path | None:
    """Where the record that stood there went, or None; the new one is in place when this returns.

    Files are staged whole beside their places first; the old record leaves manifest first, the new one
    arrives by rename, manifest last. Whoever dies in between leaves no manifest, hence no record. What
    cannot be put in place is kept elsewhere, and the RecordError says where.
    """
    at = manifest_path.parent
    digests = {name: sha256(text.encode()).hexdigest() for name, text in files.items()}
    outputs = {name: {"sha256": digest, "rows": rows[name]} for name, digest in digests.items()}
    whole = {**files, manifest_path.name: json_text(seal({**manifest, "outputs": outputs}))}
    with _undisturbed():
        try:
            stage = staging(manifest_path)
            try:
                _write_all(stage, whole)
                moved = set_aside(manifest_path, list(files))
                for name in whole:
                    (stage / name).replace(at / name)
                    sync_folder(at)
            finally:
                shutil.rmtree(stage, ignore_errors=True)
        except OSError as error:
            kept = _kept(manifest_path, whole, manifest)
            raise RecordError(f"{at}: cannot be written ({error.strerror or error}); {kept}") from error
    return moved


@contextlib.contextmanager
def _undisturbed() -> Generator[None]:
    """An interrupt waits until the record is in place: it took minutes to measure, this takes a moment."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _write_all(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True)
    try:
        for name, text in files.items():
            write_through(folder / name, text.encode())
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _kept(manifest_path: Path, whole: Mapping[str, str], manifest: JSON) -> str:
    """Where a measured record was put that has no place, in words: the first folder that takes it."""
    name = f"{manifest['started_at'].replace(':', '')}-not-in-place"
    elsewhere = f"inference-lab-{manifest_path.parent.name}-{name}"
    beside = manifest_path.parent / "superseded" / name
    for folder in (beside, Path(os.environ.get("TMPDIR") or "/tmp", elsewhere), Path.home() / elsewhere):
        try:
            target = _unused(folder)
            _write_all(target, whole)
        except OSError:  # no room here either
            continue
        way_out = f"fix that, then move its files to {manifest_path.parent}"
        return f"what was measured is kept in {target}; {way_out}"
    return "nothing was recorded, for no other folder took what was measured: make room and measure again"


def set_aside(manifest_path: Path, files: Sequence[str]) -> Path | None:
    """Where an old record was moved, superseded/<started_at>-<digest8>/, or None when there was nothing.

    The manifest leaves first. Files without a manifest are no record; they are kept all the same.
    """
    at = manifest_path.parent
    present = [at / name for name in files if (at / name).exists()]
    if not present and not manifest_path.exists():
        return None
    try:
        receipt = read_receipt(manifest_path)
        name = f"{receipt['started_at'].replace(':', '')}-{receipt['digest'][:8]}"
        present += [at / old for old in receipt["outputs"] if old not in files and (at / old).exists()]
    except (RecordError, KeyError):
        first = manifest_path if manifest_path.exists() else present[0]
        moment = datetime.fromtimestamp(first.stat().st_mtime).astimezone()
        name = f"no-record-{moment:%Y-%m-%dT%H%M%S}-{sha256_file(first)[:8]}"
    target = _unused(at / "superseded" / name)
    target.mkdir(parents=True)
    for path in (manifest_path, *present):
        if path.exists():
            path.replace(target / path.name)
            sync_folder(at)
    return target


def place_beside(manifest_path: Path, name: str) -> Path:
    """Where a record is kept that does not take the place of the one there: superseded/<name>/."""
    return _unused(manifest_path.parent / "superseded" / name.replace(":", "")) / manifest_path.name


def _unused(folder: Path) -> Path:
    more = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
    return next(candidate for candidate in chain([folder], more) if not candidate.exists())
