"""Print the sizes of the project beside their bars: lines, modules, functions, untyped mappings, records.

uv run python -m tests.tools.sizes
"""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
MEGABYTE = 10**6


def tracked(folder: str, suffix: str = "") -> list[Path]:
    """Return the files git knows below a folder."""
    names = subprocess.run(
        ["git", "ls-files", "-z", folder], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    return [path for name in names if name.endswith(suffix) and (path := ROOT / name).is_file()]


def lines(path: Path) -> int:
    """Return the number of lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def function_lines(paths: list[Path]) -> Iterator[int]:
    """Return the length of each function without its docstring: a `def` line and its body."""
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                first = node.body[0]
                documented = ast.get_docstring(node) is not None and first.end_lineno
                docstring = first.end_lineno - first.lineno + 1 if documented and first.end_lineno else 0
                yield node.end_lineno - node.lineno + 1 - docstring


def untyped(paths: list[Path]) -> int:
    """Return how often a mapping of anything is written: `Mapping[str, Any]`, `dict[str, Any]` or `JSON`."""
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    words = ("Mapping[str, Any]", "dict[str, Any]", "JSON")
    return sum(isinstance(node, ast.Subscript | ast.Name) and ast.unparse(node) in words for node in nodes)


def comments(paths: list[Path]) -> int:
    """Return how many lines are or end in a comment."""
    return sum("# " in line for path in paths for line in path.read_text(encoding="utf-8").splitlines())


def main() -> None:
    """Print the table."""
    source, tests = tracked("src", ".py"), tracked("tests", ".py")
    modules = [path for path in source if lines(path)]
    functions = sorted(function_lines(source))
    total = sum(map(lines, source))
    largest = max(source, key=lines)
    records = sum(path.stat().st_size for path in tracked("results"))
    for what, value, bar in (
        ("lines of src", total, "10,500"),
        ("modules of src", len(modules), "85"),
        (f"lines of {largest.relative_to(ROOT)}, the largest", lines(largest), "350"),
        ("lines of a function, median", median(functions), "8"),
        ("lines of a function, P90", functions[len(functions) * 9 // 10], "22"),
        ("Mapping[str, Any] in src, also as dict or by an alias", untyped(source), "30"),
        ("comments per 100 lines of src", round(100 * comments(source) / total, 1), "4 to 5"),
        ("lines of tests", sum(map(lines, tests)), "14,500"),
        ("lines of page templates", sum(map(lines, tracked("src", ".j2"))), ""),
        ("MB of results", round(records / MEGABYTE, 1), "40"),
    ):
        print(f"{what:<60} {value:>8,}  {f'(bar {bar})' if bar else ''}")


if __name__ == "__main__":
    main()
