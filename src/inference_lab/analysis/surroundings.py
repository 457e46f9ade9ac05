"""What a manifest says of its machine and of what others did on it, in the form of today.

Answers: what of it may be printed and judged? Records of before named no units, and nothing bounded what
they say of others: what cannot be on so many cores is not known.
"""

from collections.abc import Mapping
from typing import Any

_BEFORE = {"others_cpu": "others_used_cores", "steal": "steal_cores", "pressure": "pressure_percent"}
UNBOUNDED = "not known: recorded before it was bounded"


def environment_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The environment of a manifest under today's names, which tell the unit.

    `max` of `others_used_cores` is UNBOUNDED in a record of before that says more than there were cores.
    """
    said: Mapping[str, Any] = manifest.get("environment", {})
    found = {_BEFORE.get(name, name): value for name, value in said.items()}
    others = said.get("others_cpu")
    if others is not None and others["max"] > said.get("cores", others["max"]):
        found["others_used_cores"] = {**others, "max": UNBOUNDED}
    return found
