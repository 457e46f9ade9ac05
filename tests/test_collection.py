"""What is held true of the whole tree: tests are collected, words are there, imports can be followed."""

import ast
import functools
import sys
import tomllib
import unittest
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from inference_lab.records.digests import Sources
from inference_lab.records.installed import check_package
from tests.checkout import ROOT

SOURCE = ROOT / "src/inference_lab"
TESTS = ROOT / "tests"
Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
DISTRIBUTIONS = {"yaml": "pyyaml"}  # where the imported name is not the distribution's


@functools.cache
def sources() -> dict[str, ast.Module]:
    """The tree of every source file of the package, by its path."""
    found = sorted(SOURCE.rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_bytes()) for path in found}


def unit_tests() -> list[Path]:
    """Every test file but the slow checks of the workflow and what those copy."""
    return [path for path in sorted(TESTS.rglob("test_*.py")) if TESTS / "workflow" not in path.parents]


def imported(tree: ast.Module) -> Iterator[str]:
    """Every module a file imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def public(tree: ast.AST, within: str = "") -> Iterator[tuple[str, Documented]]:
    """Every public class, function and method, by its dotted name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Documented) and not node.name.startswith("_"):
            yield f"{within}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from public(node, f"{within}{node.name}.")


def leaves(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """Every test of a suite."""
    for test in suite:
        yield from leaves(test) if isinstance(test, unittest.TestSuite) else [test]


class CollectionTest(unittest.TestCase):
    """Tests that lie there are tests that run."""

    def test_what_is_tested_is_this_checkout(self) -> None:
        """The package that is imported is the one beside these tests: else tests say nothing of it."""
        check_package(ROOT)

    def test_every_test_file_is_collected(self) -> None:
        """What `unittest discover -s tests` collects comes from every test file, and every file imports."""
        with mock.patch.object(sys, "path", sys.path.copy()):
            found = list(leaves(unittest.TestLoader().discover(str(TESTS))))
        failed = [test.id() for test in found if type(test).__module__ == "unittest.loader"]
        self.assertEqual(failed, [])
        collected = {type(test).__module__ for test in found}
        written = {".".join(path.relative_to(TESTS).with_suffix("").parts) for path in unit_tests()}
        self.assertEqual(written - collected, set())
        self.assertIn(self.id().removeprefix("tests."), {test.id() for test in found})

    def test_every_folder_is_a_package(self) -> None:
        """A folder of tests or sources without __init__.py would be skipped without a word."""
        for top in (SOURCE, TESTS):
            for folder in {path.parent for path in top.rglob("*.py")}:
                if TESTS / "workflow" not in folder.parents:
                    self.assertTrue((folder / "__init__.py").is_file(), folder)

    def test_tests_are_methods_with_a_sentence(self) -> None:
        """Every test says in one sentence what it protects, and belongs to a class that unittest finds."""
        for path in (*unit_tests(), *(TESTS / "workflow").glob("check_*.py")):
            tree = ast.parse(path.read_bytes())
            for name, node in public(tree):
                if isinstance(node, ast.ClassDef) or not node.name.startswith("test"):
                    continue
                with self.subTest(f"{path.relative_to(ROOT)} {name}"):
                    self.assertIn(".", name, "a bare function, which unittest does not collect")
                    sentence, *why = (ast.get_docstring(node) or "").split("\n")
                    self.assertRegex(
                        sentence, r"[.?!]$", "its docstring must begin with one sentence on a line"
                    )
                    self.assertEqual(why[:1], [""][: len(why)], "what follows stands apart")


class SourceTest(unittest.TestCase):
    """Rules of the package that no tool knows."""

    def test_every_init_is_empty(self) -> None:
        """Importing a package never adds to what a stage depends on."""
        for path in SOURCE.rglob("__init__.py"):
            self.assertEqual(path.read_bytes(), b"", path)

    def test_everything_public_is_described(self) -> None:
        """Every module, public class, function and method has a docstring that begins with words."""
        for path, tree in sources().items():
            if path.endswith("__init__.py"):
                continue
            for name, node in (("", tree), *public(tree)):
                with self.subTest(f"{path} {name}"):
                    self.assertRegex(ast.get_docstring(node) or "", r"\A\S.{8,}")

    def test_every_import_is_pinned(self) -> None:
        """Each third-party package that a source imports has its exact version in pyproject.toml.

        PyTorch alone has its own in the pins of vLLM's environment, which the peers' sections name.
        """
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        lines = project["tool"]["uv"]["constraint-dependencies"]
        pinned = {line.partition("==")[0] for line in lines}
        known = Sources(ROOT)
        self.assertEqual(len(known.pinned), len(lines))
        importers = {
            module.partition(".")[0]: path for path, tree in sources().items() for module in imported(tree)
        }
        self.assertEqual(importers.get("torch"), "src/inference_lab/experiments/kernels_peers.py")
        self.assertRegex((ROOT / "workflow/envs/vllm/requirements.txt").read_text(), r"(?m)^torch==")
        for top in importers.keys() - sys.stdlib_module_names - {"inference_lab", "torch"}:
            with self.subTest(top, imported_by=importers[top]):
                name = DISTRIBUTIONS.get(top, top).replace("_", "-").lower()
                self.assertIn(name, pinned)
                self.assertIn(name, known.pins([importers[top]]))

    def test_pip_installs_the_pins(self) -> None:
        """The extra `test` is exact: the pinned versions of all that sources and tests import."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extra: list[str] = project["optional-dependencies"]["test"]
        known = Sources(ROOT)
        pinned = [line.partition(" ;")[0].split("==") for line in extra]
        self.assertEqual({name: known.pinned.get(name) for name, _ in pinned}, dict(map(tuple, pinned)))
        files = [*SOURCE.rglob("*.py"), *unit_tests()]
        needed = known.pins([path.relative_to(ROOT).as_posix() for path in files])
        self.assertLessEqual(needed.keys() - {"pyreadline3"}, dict(map(tuple, pinned)).keys())
        self.assertIn("hypothesis", needed)

    def test_every_import_can_be_followed(self) -> None:
        """No relative, star or computed import hides a source from the closures; two modules dispatch."""
        for path, tree in sources().items():
            nodes = list(ast.walk(tree))
            froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
            self.assertEqual(
                [node.lineno for node in froms if node.level or node.names[0].name == "*"], [], path
            )
            names = {node.id for node in nodes if isinstance(node, ast.Name)}
            computed = {"import_module", "__import__", "exec", "eval", "runpy"} & names
            self.assertLessEqual(
                computed, {"import_module"} if path.endswith(("/run_stage.py", "/worker.py")) else set(), path
            )

    def test_no_assert_guards_input(self) -> None:
        """`python -O` removes assert statements: none but those that tell a type checker a type."""
        narrows = r"^assert ([\w.]+ is not None|isinstance\([\w.]+, [\w.]+\))$"
        for path, tree in sources().items():
            for node in ast.walk(tree):
                if isinstance(node, ast.Assert):
                    self.assertRegex(ast.unparse(node), narrows, f"{path} line {node.lineno}")


if __name__ == "__main__":
    unittest.main()
