"""What is here, and whether what runs is what is written: machine, interpreter, packages, this package.

What is loaded must be of the standard library, of ./src of this checkout, or listed with its digest in the
RECORD of an installed package.
"""

import csv
import functools
import hashlib
import importlib.util
import marshal
import os
import platform
import struct
import sys
import sysconfig
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType

from inference_lab.errors import MeasurementRefused, unread
from inference_lab.records.digests import PACKAGE, PINS_FILE, SOURCE_ROOT
from inference_lab.records.files import JSON

# uv and virtualenv write it into an environment, and no RECORD lists it.
_OF_THE_ENVIRONMENT = {"_virtualenv"}
_WAY_OUT = "remove .venv and run uv sync here, or pip install -e '.[test]' in an environment of its own"
# Where the interpreter and its packages are. Any other PYTHON... variable changes what runs, or how fast.
_KEPT = ("PYTHONHOME", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE")


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """`{package: installed version}`, None for one that is not installed."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def platform_and_packages(packages: Iterable[str]) -> JSON:
    """Interpreter, platform and the versions of these packages."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "machine": platform.machine(),
        "packages": versions(packages),
    }


def ran_elsewhere(receipt: JSON) -> bool:
    """Whether the tests of a receipt ran on another platform or with other versions than are here."""
    then = receipt["environment"]
    return any(then.get(key) != now for key, now in platform_and_packages(then["packages"]).items())


def machine(packages: Iterable[str]) -> JSON:
    """What this machine is: processor, cores, kernel, governor, Python, package versions, variables."""
    return {
        **platform_and_packages(packages),
        "cpu_model": _cpu_model(),
        "cores": os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "kernel": f"{platform.system()} {platform.release()}",
        "governor": kernel_says("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "thread_variables": thread_variables(),
    }


def thread_variables() -> dict[str, str]:
    """The variables of this process that steer BLAS, OpenMP and NumPy, sorted by name."""
    watched = ("OPENBLAS_", "OMP_", "MKL_", "BLIS_", "NPY_", "GOTO_", "VECLIB_", "NUMEXPR_")
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(watched)}


def kernel_says(path: str) -> str | None:
    """Return the text of a file of /proc or /sys, None where this kernel does not show it."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _cpu_model() -> str:
    for line in (kernel_says("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def check_package(root: Path = Path()) -> None:
    """Raises MeasurementRefused unless the package that runs is ./src of this checkout."""
    runs, written = Path(__file__).parents[1].resolve(), (root / SOURCE_ROOT / PACKAGE).resolve()
    if runs != written:
        raise MeasurementRefused(f"{PACKAGE} runs from {runs}, this checkout's is in {written}; {_WAY_OUT}")


def check_running(pins: Mapping[str, str]) -> dict[str, str]:
    """`{package: digest of its files}` of the pinned packages, when what runs is what is written.

    What is not loaded yet is not checked: call it again at the end. Raises MeasurementRefused with the first
    file that is another one, and the way out.
    """
    check_package()
    found = check_pins(pins)
    check_loaded()
    return found


def check_pins(pins: Mapping[str, str]) -> dict[str, str]:
    """`{package: digest of its files}`; MeasurementRefused for another version or a changed file."""
    for name, installed in versions(pins).items():
        if installed != pins[name]:
            found = f"{name} {installed or 'is not'} installed, {PINS_FILE} pins {pins[name]}"
            raise MeasurementRefused(f"{found}; run uv sync, or pip install -e '.[test]'")
    return {name: check_files(metadata.distribution(name)) for name in pins}


def check_files(distribution: metadata.Distribution, way_out: str = "") -> str:
    """sha256 over path and digest of the files of an installed package, when each is as its RECORD says.

    What an installer adds (scripts, its own notes) is checked and counts no more. Raises MeasurementRefused
    for a file that is missing or has other contents.
    """
    total, rows = hashlib.sha256(), sorted(listed(distribution))
    if not rows:
        raise _refusal(distribution, "RECORD, its list of files, is missing", way_out)
    for name, path, digest in rows:
        _check_file(distribution, name, path, digest, way_out)
        if not name.startswith("../") and ".dist-info/" not in name:
            total.update(f"{name} {digest}\n".encode())
    return total.hexdigest()


def _check_file(of: metadata.Distribution, name: str, path: str, digest: str, way_out: str = "") -> None:
    try:
        found = digest_in_record(path)
    except OSError as error:
        raise _refusal(of, f"{name}: {unread(error)}", way_out) from None
    if found != digest:
        raise _refusal(of, f"{name} was changed after it was installed", way_out)


def _refusal(of: metadata.Distribution, words: str, way_out: str) -> MeasurementRefused:
    anew = (  # uv's environments share files with its cache
        f"install it anew: uv cache clean {of.name} and uv sync --reinstall-package {of.name}, or pip install"
        f" --no-cache-dir --no-deps --force-reinstall {of.name}=={of.version}"
    )
    return MeasurementRefused(f"{of.name} {of.version}: {words}; {way_out or anew}")


def digest_in_record(path: str) -> str:
    """The digest of a file as a RECORD writes it."""
    with open(path, "rb") as file:  # noqa: PTH123  (fourteen thousand Paths take as long as their digests)
        digest = hashlib.file_digest(file, "sha256").digest()
    return f"sha256={urlsafe_b64encode(digest).decode().rstrip('=')}"


def listed(distribution: metadata.Distribution) -> list[tuple[str, str, str]]:
    """(name, path, digest) of each file that a RECORD has a digest of, but bytecode: it is compiled anew."""
    at = os.path.realpath(str(distribution.locate_file("")))
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    kept = [row for row in rows if len(row) > 1 and row[1] and not row[0].endswith(".pyc")]
    return [(row[0], os.path.normpath(f"{at}/{row[0]}"), row[1]) for row in kept]


@functools.cache
def _owned() -> dict[str, tuple[metadata.Distribution, str, str, str]]:
    """By path: the installed package that lists a file, and what it says of it."""
    return {row[1]: (package, *row) for package in metadata.distributions() for row in listed(package)}


def check_loaded(beside: Path | None = None) -> None:
    """Raises MeasurementRefused when a module of this process comes from where nothing vouches for it.

    A name of the standard library is the library's, a name of this package is a file of it that ran as it is
    there, not as old bytecode; of an installed package the file is as its RECORD says. Modules of other names
    may be below the folder `beside`, too.
    """
    new = {name: module for name, module in sys.modules.items() if _LOADED.get(name) is not module}
    library = tuple(f"{_real(sysconfig.get_path(name))}/" for name in ("stdlib", "platstdlib"))
    ours = f"{Path(__file__).resolve().parents[1]}/"
    for name, module in sorted(new.items()):
        file: str | None = getattr(module, "__file__", None)
        if file is None or name in ("__main__", "__mp_main__") or name in _OF_THE_ENVIRONMENT:
            continue
        path = f"{_real(os.path.dirname(file))}/{os.path.basename(file)}"  # noqa: PTH119, PTH120  (as above)
        top = name.partition(".")[0]
        reserved = top == PACKAGE or top in sys.stdlib_module_names
        if path.startswith(library) and "-packages/" not in path:
            continue
        if top == PACKAGE and path.startswith(ours):
            _check_bytecode(module, path)
        elif not reserved and path in _owned():
            _check_file(*_owned()[path])
        elif reserved or not (beside and path.startswith(f"{beside.resolve()}/")):
            words = "where no installed package has it; rename or remove that file, or unset PYTHONPATH"
            raise MeasurementRefused(f"module {name} was taken from {path}, {words}")
    _LOADED.update(new)


_LOADED: dict[str, ModuleType] = {}  # what was checked: a module is read once


@functools.cache
def _real(folder: str) -> str:
    return os.path.realpath(folder)


def _check_bytecode(module: ModuleType, path: str) -> None:
    """Python takes bytecode for a source of the same size and second; here the contents decide."""
    cached = module.__spec__.cached if module.__spec__ else None
    if cached is None or not os.path.exists(cached):  # noqa: PTH110  (as above)
        return
    bytecode, source, stat = Path(cached).read_bytes(), Path(path).read_bytes(), Path(path).stat()
    kind, *found = struct.unpack("<3I", bytecode[4:16])  # PEP 552: 0 is trusted by time and size, 1 always
    same = found == [int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size & 0xFFFFFFFF]
    trusted = bytecode[:4] == importlib.util.MAGIC_NUMBER and (kind == 1 or (kind == 0 and same))
    if trusted and marshal.loads(bytecode[16:]) != compile(source, path, "exec", dont_inherit=True):
        Path(cached).unlink(missing_ok=True)
        words = "old bytecode ran, of a source of the same size and time; it is removed now, run it again"
        raise MeasurementRefused(f"{path}: {words}")


def of_child() -> dict[str, str]:
    """The environment of every Python process of ours: it imports what this one does, and nothing else.

    Its package is this one, its working directory holds no modules, its bytecode lies beside its sources. Of
    PYTHONPATH it has the folders in which packages are installed.
    """
    package = Path(__file__).resolve().parents[2]
    named = [Path(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    folders = [package, *(folder for folder in named if next(folder.glob("*.dist-info"), None))]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") or k in _KEPT}
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONSAFEPATH": "1"}
