"""Putting results in place and taking them out again: whole, in order, the receipt last."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from inference_lab.errors import RecordError
from inference_lab.records.chain import SCHEMA, Chain, check_outputs, read_receipt, receipt_of, seal, ways_out
from inference_lab.records.files import json_text, sha256_file, staging, sync_folder, write_file, write_json
from inference_lab.records.layout import Step
from inference_lab.records.raw import CONTROLS, read_rows, read_samples
from inference_lab.records.record import Record
from inference_lab.records.requests import read_lines, read_requests
from inference_lab.records.sources import Sources


def make(step: Step, produce: Callable[[], Mapping[str, str]]) -> bool:
    """Whether the step's files were made anew; False when its receipt holds already and nothing was done.

    `produce` returns the text of every file the step makes. Nothing is written when an input changes
    meanwhile: the digests are taken before and after.
    """
    sources = Sources()
    before, pins = step.inputs(sources), step.pins(sources)
    if Path(step.receipt).exists() and not Chain({"experiments": {}}).differences(step):
        return False
    texts = produce()
    if step.inputs(Sources()) != before:
        raise RecordError(f"{step.name}: an input changed while it ran; nothing was recorded, run it again")
    for path in step.makes:
        write_file(Path(path), texts[path])
    write_json(Path(step.receipt), seal(receipt_of(step, before, pins)))
    return True


def load_record(manifest_path: Path) -> Record:
    """The record a manifest describes, with every digest and row count checked.

    Raises RecordError naming file, expected and found digest when anything differs.
    """
    manifest = read_receipt(manifest_path)
    if manifest.get("schema") != SCHEMA:
        raise RecordError(
            f"{manifest_path}: has form {manifest.get('schema')}, this version reads {SCHEMA}; measure again"
        )
    at = manifest_path.parent
    check_outputs(manifest_path, manifest, Sources())
    parts: dict[str, list[Any]] = {}
    for name, made in manifest["outputs"].items():
        part, found = _part(at / name, manifest["kind"])
        if len(found) != made["rows"]:
            raise RecordError(
                f"{at / name}: {len(found)} rows, its manifest counts {made['rows']};"
                f" {ways_out(manifest_path)}"
            )
        parts.setdefault(part, []).extend(found)
    samples, controls, rows, requests, truth, server = (
        parts.get(name, []) for name in ("samples", "controls", "rows", "requests", "truth", "server")
    )
    return Record(manifest["experiment"], manifest, samples, controls, rows, requests, truth, server)


def _part(file: Path, kind: str) -> tuple[str, Sequence[Any]]:
    """(field of Record, rows) of one raw file, by its name and the kind of its record."""
    if file.name.endswith(CONTROLS):
        return "controls", read_samples(file, controls=True)
    if file.name == "requests.jsonl":
        return "requests", read_requests(file)[0]
    if file.suffix == ".jsonl":
        return file.stem, read_lines(file)  # truth or server
    return ("samples", read_samples(file)) if kind == "timing" else ("rows", read_rows(file))


def check_writable(folder: Path) -> None:
    """Raises RecordError when nothing can be put into this folder: better before measuring than after."""
    nearest = next(at for at in (folder, *folder.absolute().parents) if at.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise RecordError(
            f"{folder}: cannot be written ({nearest} is no folder of yours); name another place"
        )


def replace_record(
    manifest_path: Path, files: Mapping[str, str], rows: Mapping[str, int], manifest: Mapping[str, Any]
) -> Path | None:
    """Where the record that stood there went, or None; the new one is in place when this returns.

    Files are staged whole on the same file system first; the old record leaves manifest first, the new
    one arrives by rename, manifest last. Whoever dies in between leaves no manifest, hence no record.
    """
    at = manifest_path.parent
    try:
        at.mkdir(parents=True, exist_ok=True)
        stage = staging(at, manifest_path.stem)
        stage.mkdir()
        try:
            outputs: dict[str, dict[str, Any]] = {}
            for name, text in files.items():
                _write_through(stage / name, text)
                outputs[name] = {"sha256": sha256_file(stage / name), "rows": rows[name]}
            _write_through(stage / manifest_path.name, json_text(seal({**manifest, "outputs": outputs})))
            moved = set_aside(manifest_path, list(files))
            for name in (*files, manifest_path.name):
                (stage / name).replace(at / name)
                sync_folder(at)
        finally:
            shutil.rmtree(stage)
    except OSError as error:
        raise RecordError(
            f"{at}: cannot be written ({error.strerror or error}); no record was made"
        ) from error
    return moved


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
    number, candidate = 1, folder
    while candidate.exists():
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")
    return candidate


def _write_through(path: Path, text: str) -> None:
    with path.open("wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
