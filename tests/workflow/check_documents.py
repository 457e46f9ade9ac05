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
from pathlib import Path
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
from tests.checkout import ROOT
from tests.tools.architecture import picture
from tests.workflow.harness import laid_over

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


def tracked() -> list[str]:
    """Every file git knows, as a path from the top."""
    said = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    return [name for name in said.stdout.split("\0") if (ROOT / name).is_file()]


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


def file_tree(text: str) -> dict[str, str]:
    """What the file tree, the last indented block, says of each path; its own indent is the folder above."""
    block = re.findall(r"(?:^ {4}.*\n)+", text, re.MULTILINE)[-1]
    entries: dict[str, str] = {}
    folder = ""
    for line in block.splitlines():
        name, _, says = line.strip().partition(" ")
        inside = line.startswith(" " * 6)
        folder = folder if inside else name
        entries[f"{folder}{name}" if inside else name] = says.strip()
    return entries


def made_by_the_pipeline() -> set[str]:
    """Every file that `snakemake all` makes."""
    walk = Plan(load_config().given())
    steps = [step for experiment in walk.experiments for step in walk.steps(experiment)]
    return {*files_of(steps), TESTS_RECEIPT}


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
                in_chinese = re.findall(what, other, re.MULTILINE)
                self.assertEqual(found, [each.replace(".zh-CN", "") for each in in_chinese])

    def test_file_tree(self) -> None:
        """Each path of the tree exists or is made; all top entries and modules are in it, in both pages."""
        files, made = tracked(), made_by_the_pipeline()
        entries, others = (file_tree(read(name)) for name in READMES)
        self.assertEqual(list(entries), list(others))
        for path, says in entries.items():
            with self.subTest(path):
                self.assertTrue(says)
                self.assertTrue(
                    [name for name in (*files, *made) if f"{name}/".startswith(f"{path.rstrip('/')}/")]
                )
        self.assertEqual(
            {name.split("/")[0] for name in files} - {path.split("/")[0] for path in entries}, set()
        )
        package = "src/inference_lab/"
        inside = [name.removeprefix(package) for name in files if name.startswith(package)]
        modules = {name if "/" not in name else f"{name.split('/')[0]}/" for name in inside} - {"__init__.py"}
        self.assertEqual({f"{package}{name}" for name in modules} - set(entries), set())


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
            prose = " ".join(part.data for part in page.find_all(nodes.TemplateData))
            prose = re.sub(allowed, "", re.sub(r"\]\([^)]*\)", "]", prose))
            # `[0]` and `[:10]` pick out of a list or a text: no numbers of the article.
            places = [place.arg for place in page.find_all(nodes.Getitem)]
            picks = {id(const) for place in places for const in (place, *place.find_all(nodes.Node))}
            written = [const.value for const in page.find_all(nodes.Const) if id(const) not in picks]
            texts = [re.sub(r"p(50|95)_", "", value) for value in written if isinstance(value, str)]
            with self.subTest(template.name):
                self.assertEqual(re.findall(r".{0,30}\d.{0,30}", prose), [])
                self.assertEqual([value for value in written if not isinstance(value, str | bool | None)], [])
                self.assertEqual([text for text in texts if re.search(r"\d", text)], [])

    def test_articles_follow_from_the_record(self) -> None:
        """An article in place is, byte for byte, what its template and its record give."""
        for name in tracked():
            if re.fullmatch(r"docs/experiments/[^/]+\.md", name):
                with self.subTest(name):
                    self.assertEqual(read(name), rendered(ROOT, Path(name).stem))


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
        both = laid_over(*(yaml.safe_load(path.read_text(encoding="utf-8")) for path in (config, small)))
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
            cwd=self.lab, env={**kept, "PATH": os.pathsep.join([str(self.outside / "python/bin"), *path])},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=900,
        )  # fmt: skip

    def test_every_command_works(self) -> None:
        """Each line of the sh blocks, then each command in a sentence, ends with 0; nothing is left to do."""
        page = (self.lab / "README.md").read_text(encoding="utf-8")
        commands = list(dict.fromkeys([*blocks(page), *COMMAND.findall(page)]))
        self.assertIn("pip install uv", commands[0])
        for command in commands:
            with self.subTest(command):
                done = self.run_in_clone(command)
                self.assertEqual(done.returncode, 0, done.stdout[-5000:])
        self.assertIn("Nothing to be done", self.run_in_clone("uv run snakemake -n all").stdout)
        article = self.lab / "docs/experiments/m1.md"
        self.assertEqual(article.read_text(encoding="utf-8"), rendered(self.lab, "m1"))
        made = self.run_in_clone("git ls-files -omz --exclude-standard").stdout.split("\0")
        self.assertIn("results/m1/manifest.json", made)
        for name in filter(None, made):  # no file for git names these folders
            with self.subTest(made=name):
                self.assertNotIn(self.outside.name, (self.lab / name).read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
