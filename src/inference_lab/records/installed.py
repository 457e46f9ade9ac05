"""What is installed here: interpreter, platform and package versions, as far as outcomes depend on them."""

import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any


def interpreter() -> dict[str, str]:
    """Python and platform."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.system(),
        "machine": platform.machine(),
    }


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """`{package: installed version}`, None for one that is not installed."""
    found: dict[str, str | None] = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def platform_and_packages(packages: Iterable[str]) -> dict[str, Any]:
    """Interpreter, platform and the versions of these packages."""
    return {**interpreter(), "packages": versions(packages)}


def ran_elsewhere(receipt: Mapping[str, Any]) -> bool:
    """Whether the tests of a receipt ran on another platform or with other versions than are here."""
    then: Mapping[str, Any] = receipt["environment"]
    return any(then.get(key) != now for key, now in platform_and_packages(then["packages"]).items())
