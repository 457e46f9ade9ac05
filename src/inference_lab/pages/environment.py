"""Machine, session and servers of a record, and for which of the varied values each fact holds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inference_lab.pages.render import words
from inference_lab.records.record import varied

Manifest = Mapping[str, Any]
Fact = tuple[str, str, str]  # its name, its value, for what it holds
_MACHINE = (
    *("cpu_model", "cores", "affinity", "kernel", "governor", "python", "blas"),
    *("thread_variables", "packages"),
)
_SESSION = (
    *("others_used_cores", "unknown_looks", "steal_cores", "pressure_percent", "mhz"),
    *("load_before", "load_after", "waited_for_quiet_s"),
)
_SERVER = ("kind", "version", "kv_cache_tokens", "block_size", "clock")


def machine(manifest: Manifest) -> dict[str, str]:
    """Return the facts of the machine and its software."""
    return _known(manifest["environment"], _MACHINE)


def session(manifest: Manifest) -> dict[str, str]:
    """Return when and from what source the record was measured, and what else the machine did then."""
    git = manifest.get("git") or {}
    changed = " with uncommitted changes" if git.get("dirty") else ""
    return {
        "measured": f"{manifest['started_at']} to {manifest['finished_at']}",
        "source": f"{git.get('commit', 'not known')[:12]}{changed}",
        **_known(manifest["environment"], _SESSION),
    }


def _known(facts: Manifest, names: Sequence[str]) -> dict[str, str]:
    return {name: words(facts[name]) for name in names if name in facts}


def servers(manifests: Mapping[str, Manifest]) -> list[Fact]:
    """Return each fact of the servers of these experiments and where it holds: "all", or which values.

    Facts of one name that hold at the same places are one.
    """
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for experiment, manifest in manifests.items():
        axis, _ = varied(manifest)
        for server in manifest.get("servers") or ():
            place = str(server["settings"].get(axis, f"server {server['server']}"))
            for fact in _of_server(server["facts"]):
                found.setdefault(fact, {}).setdefault(experiment, []).append(place)
    merged: dict[tuple[str, str], list[str]] = {}
    for (name, value), places in found.items():
        merged.setdefault((name, _place(places, manifests)), []).append(value)
    names = list(dict.fromkeys(name for name, _ in found))
    facts = [(name, " ".join(values), place) for (name, place), values in merged.items()]
    return sorted(facts, key=lambda fact: names.index(fact[0]))


def _place(places: Mapping[str, Sequence[str]], manifests: Mapping[str, Manifest]) -> str:
    """Return where a fact holds in words; of several experiments with their names."""
    words: list[str] = []
    for experiment, at in places.items():
        some = f"{varied(manifests[experiment])[0]} {', '.join(dict.fromkeys(at))}"
        if len(at) == len(manifests[experiment]["servers"]):
            words.append(experiment)
        else:
            words.append(some if len(manifests) == 1 else f"{experiment} ({some})")
    return "all" if words == list(manifests) else ", ".join(words)


def _of_server(facts: Manifest) -> Iterator[tuple[str, str]]:
    yield from _known(facts, _SERVER).items()
    option: list[str] = []
    for word in (*facts.get("arguments", ()), "--"):  # one fact per option, so that what differs is seen
        if word.startswith("--") and option:
            yield "options", " ".join(option)
            option = []
        option.append(word)
    for file, digest in ((facts.get("model") or {}).get("sha256") or {}).items():
        yield "model sha256", f"{file} {digest[:12]}"
