"""Do the documents say what is so? Their commands run, links lead somewhere, numbers come from records.

The README's commands are run in a throwaway clone of the last commit, in a folder whose name has a blank and
letters of other scripts, by a Python of its own that has pip and no uv; tests/ci.yaml is merged into its
config.yaml, so that a measurement takes seconds.
"""

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jinja2
import yaml
from jinja2 import nodes

from inference_lab.commands import run_stage
from inference_lab.config.experiments import load_config
from inference_lab.config.prediction import load_prediction
from inference_lab.experiments.observations import COLUMNS, rows
from inference_lab.mechanisms.numpy_semantics import OPERATIONS
from inference_lab.pages.analysis import pages
from inference_lab.records.plan import Plan
from inference_lab.records.stages import TESTS_RECEIPT, files_of, prediction_file
from tests.tools.architecture import picture

ROOT = Path(__file__).resolve().parents[2]
READMES = ("README.md", "README.zh-CN.md")
COMMAND = re.compile(r"`(uv [^`]+)`")  # in a sentence or a table
# Names in a document that say nothing about where it was written or what was downloaded from where.
CITED_HOSTS = {
    "127.0.0.1",  # an example of an address
    "json-schema.org",  # names of formats, not addresses
    "purl.org",
    "www.w3.org",
    "creativecommons.org",
    "matplotlib.org",  # every SVG names what drew it
    "jfly.uni-koeln.de",  # the palette
}
HOST = re.compile(r"\b[a-z]+://([^/\s\"'<>):{}]+)")
MACHINE_PATH = re.compile(
    r"(?<![\w./~$}-])/(?:home|root|Users|tmp|var/tmp|work|workspace|opt|srv|mnt|media)/\w"
)


def git(*words: str) -> str:
    """What git says in this checkout."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True, text=True).stdout


def tracked() -> list[str]:
    """Every file git knows, as a path from the top."""
    return [name for name in git("ls-files", "-z").split("\0") if (ROOT / name).is_file()]


def read(name: str) -> str:
    """A document's text."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str) -> list[str]:
    """The commands of a document's sh blocks, continued lines joined, comments kept."""
    found = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in found for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.strip()]


def words(command: str) -> list[str]:
    """A command as the shell reads it, without its comment."""
    return shlex.split(command, comments=True)


@dataclass(frozen=True)
class Entry:
    """One line of the README's file tree: a path from the top, and what is said of it."""

    path: str
    says: str


def file_tree(text: str) -> list[Entry]:
    """The lines of the file tree, the last indented block; an indented line stands in the folder above it."""
    block = re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE)[-1]
    entries: list[Entry] = []
    folder = ""
    for line in block.splitlines():
        name, _, says = line.strip().partition(" ")
        inside = line.startswith(" " * 6)
        if not inside:
            folder = name
        entries.append(Entry(f"{folder}{name}" if inside else name, says.strip()))
    return entries


def made_by_the_pipeline() -> set[str]:
    """Every file that `snakemake all` makes."""
    walk = Plan(load_config().given())
    steps = [step for experiment in walk.experiments for step in walk.steps(experiment)]
    return {*files_of(steps), TESTS_RECEIPT}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below` key by key, as `--configfile` does."""
    both = {
        key: merged(below[key], above[key])
        for key in below.keys() & above.keys()
        if isinstance(below[key], dict) and isinstance(above[key], dict)
    }
    return {**below, **above, **both}


class FromTheTop(unittest.TestCase):
    """Checks whose paths start at the top of the checkout."""

    def setUp(self) -> None:
        """Be at the top of the checkout."""
        self.enterContext(contextlib.chdir(ROOT))


class ReadmeTest(FromTheTop):
    """README.md and README.zh-CN.md."""

    def test_same_commands_in_both_languages(self) -> None:
        """Both hold the same commands in the same order, in blocks and in sentences; comments may differ."""
        one, other = map(read, READMES)
        self.assertGreater(len(blocks(one)), 10)
        self.assertEqual([words(line) for line in blocks(one)], [words(line) for line in blocks(other)])
        self.assertEqual(COMMAND.findall(one), COMMAND.findall(other))

    def test_same_structure_in_both_languages(self) -> None:
        """Both have the same headings in depth and number, links in order, and rows of tables."""
        one, other = map(read, READMES)
        for what in (r"^(#+) ", r"(?<!\[English)(?<!\[中文)\]\(([^)]+)\)", r"^(\|)"):
            with self.subTest(what):
                found = re.findall(what, one, re.MULTILINE)
                self.assertGreater(len(found), 5)
                self.assertEqual(found, re.findall(what, other, re.MULTILINE))

    def test_file_tree(self) -> None:
        """Each path of the tree exists or is made; every top-level entry and module stands in it."""
        files, made = tracked(), made_by_the_pipeline()
        entries = file_tree(read("README.md"))
        for entry in entries:
            with self.subTest(entry.path):
                self.assertTrue(entry.says)
                folder = entry.path if entry.path.endswith("/") else f"{entry.path}/"
                self.assertTrue([name for name in (*files, *made) if f"{name}/".startswith(folder)])
        listed = {entry.path for entry in entries}
        top = {name.split("/")[0] for name in files}
        self.assertEqual(top - {path.split("/")[0] for path in listed}, set())
        package = "src/inference_lab/"
        inside = [name.removeprefix(package) for name in files if name.startswith(package)]
        modules = {name if "/" not in name else f"{name.split('/')[0]}/" for name in inside} - {"__init__.py"}
        self.assertEqual({f"{package}{name}" for name in modules} - listed, set())

    def test_same_file_tree_in_both_languages(self) -> None:
        """The Chinese page lists the same paths in the same order."""
        one, other = ([entry.path for entry in file_tree(read(name))] for name in READMES)
        self.assertEqual(one, other)


class ArchitectureTest(FromTheTop):
    """docs/architecture.md and its picture."""

    def test_the_picture_is_of_this_source(self) -> None:
        """`python -m tests.tools.architecture` draws it."""
        self.assertEqual(read("docs/architecture.svg"), picture())

    def test_every_file_it_names_exists(self) -> None:
        """A path inside the package may leave out `src/inference_lab/` and, in a walk, `stream_load/`."""
        named = re.findall(r"`([\w/]+\.(?:py|smk|yaml))`", read("docs/architecture.md"))
        self.assertGreater(len(named), 40)
        tops = (Path(), Path("src/inference_lab"), Path("src/inference_lab/stream_load"))
        self.assertEqual([name for name in named if not any((top / name).is_file() for top in tops)], [])


class DocumentsTest(FromTheTop):
    """Every page that people read."""

    def test_links(self) -> None:
        """Every relative link leads to a tracked file, or to one that the pipeline makes."""
        files = {*tracked(), *made_by_the_pipeline()}
        pages = [name for name in files if re.fullmatch(r"[^/]+\.md|docs/.+\.(md|j2)", name)]
        self.assertLessEqual({*READMES, "CHANGELOG.md", "docs/experiments/m1.md.j2"}, set(pages))
        for page in sorted(pages):
            for link in re.findall(r"\]\(([^)\s]+)\)", read(page) if Path(page).is_file() else ""):
                with self.subTest(page=page, link=link):
                    target = unquote(link.partition("#")[0])
                    if target and not re.match(r"[a-z]+:", target):
                        path = os.path.normpath(Path(page).parent / target)
                        self.assertIn(path, files)

    def test_nothing_of_a_machine(self) -> None:
        """No tracked file outside the tests holds a path of some machine or an address to load from."""
        for name in tracked():
            if name.startswith("tests/"):
                continue
            text = read(name)
            with self.subTest(name):
                self.assertIsNone(MACHINE_PATH.search(text))
                self.assertNotIn(str(ROOT), text)
                self.assertLessEqual(set(HOST.findall(text)), CITED_HOSTS)

    def test_articles_hold_no_number_of_their_own(self) -> None:
        """Outside its expressions a template names conditions alone (B=8), inside them it has no number."""
        config = load_config().given()["experiments"]
        for template in sorted(Path("docs/experiments").glob("*.md.j2")):
            experiment = template.name.removesuffix(".md.j2")
            page = jinja2.Environment().parse(read(template.as_posix()))
            varied = config[experiment]["measure"]["vary"]["batch_size"]
            allowed = rf"\bB=({'|'.join(map(str, varied))})\b|\bP(50|95)\b|\b{experiment}(\.md\.j2)?\b"
            with self.subTest(template.name):
                prose = " ".join(part.data for part in page.find_all(nodes.TemplateData))
                prose = re.sub(r"\]\([^)]*\)", "]", prose)
                self.assertEqual(re.findall(r".{0,30}\d.{0,30}", re.sub(allowed, "", prose)), [])
                places = {id(const) for const in indices(page)}
                written = [const.value for const in page.find_all(nodes.Const) if id(const) not in places]
                numbers = [value for value in written if not isinstance(value, str | bool | None)]
                self.assertEqual(numbers, [])
                texts = [value for value in written if isinstance(value, str)]
                self.assertEqual(
                    [text for text in texts if re.search(r"\d", re.sub(r"p(50|95)_", "", text))], []
                )

    def test_articles_follow_from_the_record(self) -> None:
        """An article in place is, byte for byte, what its template and its record give."""
        for name in tracked():
            if re.fullmatch(r"docs/experiments/[^/]+\.md", name):
                with self.subTest(name):
                    self.assertEqual(read(name), rendered(ROOT, Path(name).stem))


def indices(page: nodes.Template) -> list[nodes.Node]:
    """The numbers by which a template picks out of a list or text: `[0]`, `[:10]`."""
    places = [place.arg for place in page.find_all(nodes.Getitem)]
    return [const for place in places for const in (place, *place.find_all(nodes.Node))]


def rendered(root: Path, experiment: str) -> str:
    """An experiment's article as its template and its record give it now."""
    with contextlib.chdir(root):
        judge = load_config().experiments[experiment].judge
        view = run_stage.read_view(Path("results", experiment), judge, "analysis.md")
        template = Path(f"docs/experiments/{experiment}.md.j2")
        return pages(view, Path(prediction_file(experiment)), template)[2]


class DeclarationsTest(FromTheTop):
    """What is written down twice, and what has to be written down at all."""

    def test_every_experiment_is_predicted(self) -> None:
        """Each experiment of the config has a valid prediction with at least one claim."""
        for experiment in load_config().given()["experiments"]:
            with self.subTest(experiment):
                self.assertTrue(load_prediction(Path(prediction_file(experiment))).claims)

    def test_every_property_of_p0_is_predicted(self) -> None:
        """p0 looks at every observation; each property of each has exactly one claim, nothing else has."""
        names = load_config().given()["experiments"]["p0"]["measure"]["vary"]["observation"]
        self.assertEqual(names, list(OPERATIONS))
        claims = load_prediction(Path(prediction_file("p0"))).claims
        claimed = [(claim.at["observation"], claim.of) for claim in claims]
        expected = [
            (row["observation"], column)
            for row in rows(names)
            for column in COLUMNS[1:]
            if column != "mixes_sequences" or row[column]
        ]
        self.assertEqual(sorted(claimed), sorted(expected))


class CommandsTest(unittest.TestCase):
    """The README's commands, as written, where nobody ran anything before."""

    lab: Path
    outside: Path

    @classmethod
    def setUpClass(cls) -> None:
        """Clone this repository, lay tests/ci.yaml over its config, and make a Python that has pip."""
        outside = Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="inference-lab-checks-")))
        cls.outside, cls.lab = outside, outside / "a new lab é 实验"
        subprocess.run(["git", "clone", "--quiet", "--local", ROOT, cls.lab], check=True)
        config, small = cls.lab / "config.yaml", cls.lab / "tests/ci.yaml"
        both = merged(*(yaml.safe_load(path.read_text(encoding="utf-8")) for path in (config, small)))
        config.write_text(yaml.safe_dump(both, sort_keys=False), encoding="utf-8")
        base = Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}")
        subprocess.run([base, "-m", "venv", outside / "python"], check=True)

    def run_in_clone(self, command: str) -> subprocess.CompletedProcess[str]:
        """A finished command, both streams in one, run by a shell that knows nothing of this checkout."""
        ours = Path(sys.prefix, "bin")
        path = [place for place in os.environ["PATH"].split(os.pathsep) if Path(place) != ours]
        foreign = ("VIRTUAL_ENV", "PYTHON", "SNAKEMAKE_", "UV_PROJECT", "OPENBLAS_", "OMP_", "GIT_", "TOY_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.lab,
            env={**kept, "PATH": os.pathsep.join([str(self.outside / "python/bin"), *path])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=900,
        )

    def test_every_command_works(self) -> None:
        """Each line of the sh blocks, then each command in a sentence, ends with 0; nothing is left to do."""
        page = (self.lab / "README.md").read_text(encoding="utf-8")
        commands = list(dict.fromkeys([*blocks(page), *COMMAND.findall(page)]))
        self.assertIn("pip install uv", commands[0])
        self.run_all(commands)
        plan = self.run_in_clone("uv run snakemake -n all")
        self.assertIn("Nothing to be done", plan.stdout)
        self.look_at_what_was_made()

    def look_at_what_was_made(self) -> None:
        """Assert that the article follows from its record and that no file for git names these folders."""
        article = self.lab / "docs/experiments/m1.md"
        self.assertEqual(article.read_text(encoding="utf-8"), rendered(self.lab, "m1"))
        made = self.run_in_clone("git ls-files -omz --exclude-standard").stdout.split("\0")
        self.assertIn("results/m1/manifest.json", made)
        for name in filter(None, made):
            with self.subTest(made=name):
                self.assertNotIn(self.outside.name, (self.lab / name).read_text(encoding="utf-8"))

    def run_all(self, commands: Sequence[str]) -> None:
        """Assert that each command ends with 0."""
        for command in commands:
            with self.subTest(command):
                done = self.run_in_clone(command)
                self.assertEqual(done.returncode, 0, done.stdout[-5000:])


if __name__ == "__main__":
    unittest.main()
