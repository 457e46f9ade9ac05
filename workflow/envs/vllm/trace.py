"""Finds in the installed vLLM the places that cause what is recorded, and checks that they have not moved.

`python workflow/envs/vllm/trace.py` compares the places declared in trace.yaml with the lines and digests in
trace.pins.json. `--output PAGE` writes the page of findings, `--write` declares what is found here. Reads
vLLM's source as text and copies none of it.
"""

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from inference_lab.errors import ConfigError, LabError, RecordError
from inference_lab.records.files import read_json, sha256_file, write_file, write_json

sys.path.append(str(Path(__file__).resolve().parent))
from install import HERE, Environment, find_environment

PINS = HERE / "trace.pins.json"
_TEXTS = ("title", "state", "decides", "shows")


class Place(NamedTuple):
    """A file of the vllm package, a symbol in it, and the name whose first statement there is meant."""

    finding: str
    file: str
    symbol: str
    at: str | None

    def __str__(self) -> str:
        """Return file and symbol, as the pins name it."""
        return f"{self.file} {self.symbol}{f' at {self.at}' if self.at else ''}"


def trace(folder: Path | None = None, output: Path | None = None, *, write: bool = False) -> str:
    """Return the table of all places, checked; the page of findings goes to `output`.

    `write` declares the lines and digests found here. Raises RecordError naming what differs, ConfigError
    when trace.yaml is malformed.
    """
    environment = find_environment(folder)
    findings: Mapping[str, Any] = yaml.safe_load((HERE / "trace.yaml").read_text(encoding="utf-8"))
    places = list(_places(findings))
    found = _found(environment, places)
    if write:
        write_json(PINS, found)
    pins = read_json(PINS)
    if wrong := _differences(pins, found):
        raise RecordError(
            f"vLLM {found['vllm']} is not what was traced (vLLM {pins['vllm']}): {'; '.join(wrong)};"
            " read the source again, correct trace.yaml and run `python workflow/envs/vllm/trace.py --write`"
        )
    table = _table(places, found)
    if output is not None:
        write_file(output, _page(findings, table, found))
    return table


def _places(findings: Mapping[str, Any]) -> Iterator[Place]:
    for name, finding in findings.items():
        if set(finding) != {*_TEXTS, "places"} or not finding["places"]:
            raise ConfigError(f"trace.yaml: {name} must have {', '.join(_TEXTS)} and places, no more")
        for place in finding["places"]:
            if not {"file", "symbol"} <= set(place) <= {"file", "symbol", "at"}:
                raise ConfigError(f"trace.yaml: {name}: a place is file, symbol and perhaps at, not {place}")
            yield Place(name, place["file"], place["symbol"], place.get("at"))


def _found(environment: Environment, places: list[Place]) -> dict[str, Any]:
    """Version, `{file: sha256}` and `{place: [first line, last line] or None}` of the installed package."""
    package = Path(environment.site, "vllm")
    files: dict[str, str] = {}
    trees: dict[str, ast.Module] = {}
    lines: dict[str, list[int] | None] = {}
    for place in places:
        path = package / place.file
        if place.file not in trees and path.is_file():
            files[place.file] = sha256_file(path)
            trees[place.file] = ast.parse(path.read_bytes())
        tree = trees.get(place.file)
        lines[str(place)] = lines_of(tree, place.symbol, place.at) if tree else None
    return {"vllm": environment.facts["vllm"], "files": files, "places": lines}


def lines_of(tree: ast.Module, symbol: str, at: str | None = None) -> list[int] | None:
    """First and last line of a symbol such as Class.method, or of the first statement in it that names `at`.

    A statement that holds others, an `if` say, counts without them. None when there is no such place.
    """
    node: ast.AST | None = tree
    for name in symbol.split("."):
        inside = ast.iter_child_nodes(node) if node else ()
        node = next((each for each in inside if getattr(each, "name", None) == name), None)
    if node is None or at is None:
        return [node.lineno, node.end_lineno or node.lineno] if isinstance(node, ast.stmt) else None
    for statement in ast.walk(node):
        if statement is not node and isinstance(statement, ast.stmt):
            own = [child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)]
            if any(at in _names(child) for child in own):
                last = max(child.end_lineno or 0 for child in own if isinstance(child, ast.expr))
                return [statement.lineno, last]
    return None


def _names(node: ast.AST) -> set[str]:
    named = (ast.Name, ast.Attribute, ast.keyword)
    return {_name(each) for each in ast.walk(node) if isinstance(each, named)}


def _name(node: ast.Name | ast.Attribute | ast.keyword) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else node.arg or ""


def _differences(pins: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    wrong = [f"{place} is not there" for place, lines in found["places"].items() if lines is None]
    for kind, said in (("places", "stands at"), ("files", "has sha256")):
        for name in sorted({*pins[kind], *found[kind]}):
            declared_as, is_now = pins[kind].get(name), found[kind].get(name)
            if declared_as != is_now and f"{name} is not there" not in wrong:
                wrong.append(f"{name} {said} {_short(is_now)}, not {_short(declared_as)}")
    return wrong


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "lines " + "-".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType]
    return "nothing" if value is None else str(value)[:12]


def _table(places: list[Place], found: Mapping[str, Any]) -> str:
    rows = ["| finding | file | symbol | at | lines | sha256 of the file |", "|---|---|---|---|---|---|"]
    for place in places:
        first, last = found["places"][str(place)]
        digest = found["files"][place.file][:12]
        rows.append(
            f"| {place.finding} | {place.file} | `{place.symbol}` | {f'`{place.at}`' if place.at else ''}"
            f" | {first}-{last} | {digest} |"
        )
    return "\n".join(rows)


def _page(findings: Mapping[str, Any], table: str, found: Mapping[str, Any]) -> str:
    parts = [
        f"# Where vLLM {found['vllm']} causes what we record",
        "Made by `python workflow/envs/vllm/trace.py --output`, which found every place below in the"
        " installed package, at these lines of files with these digests. Paths are relative to the package"
        " `vllm`.",
    ]
    for name, finding in findings.items():
        parts.append(f"## {finding['title']}")
        parts.append(f"`{name}`. {finding['state']} {finding['decides']}")
        parts.append(f"**Recorded:** {finding['shows']}")
    return "\n\n".join([*parts, "## Places", table, ""])


def main(words: list[str] | None = None) -> int:
    """Exit status: 0 done, 2 refused with one line on stderr."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="of the environment (default: in the user's cache)")
    parser.add_argument("--output", type=Path, help="write the page of findings here")
    parser.add_argument("--write", action="store_true", help="declare the lines and digests found here")
    args = parser.parse_args(words)
    try:
        print(trace(args.folder, args.output, write=args.write))
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
