"""Do Snakefile and rules keep their form: linted, short, one plain command a rule, all in the report?"""

import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from tests.checkout import ROOT
from tests.workflow.harness import PROGRAMS

RULE_FILES = sorted((ROOT / "workflow/rules").glob("*.smk"))
ALLOWED_LINT = "Specify a conda environment or container for each rule."  # pins and uv stand for it
WORD = r"(--[a-z]+|\{[a-z.]+:q\})"  # an option, or something quoted for the shell
PLAIN_LINE = re.compile(rf'\n +shell:\n +"exec inference-lab ((?:stage )?[a-z]+)(?: {WORD})*"\s*\Z')
RUNS = re.compile(r"\b(shell|run|script|notebook|wrapper|template_engine):")


def rules_of(path: Path) -> list[str]:
    """The text of each rule a file writes out; `use rule` takes over another one's command."""
    text = re.sub(r"^ *#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    parts = re.split(r"^(?= *(?:use )?(?:rule|checkpoint)\b.*:$)", text, flags=re.MULTILINE)[1:]
    return [part for part in parts if not part.startswith("use ")]


class LintTest(unittest.TestCase):
    """The workflow's own files."""

    def tool(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """A finished call of an installed program at the top of the checkout, both streams in one."""
        return subprocess.run(
            [PROGRAMS / words[0], *words[1:]], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False,
        )  # fmt: skip

    def test_snakemake_misses_conda_alone(self) -> None:
        """`snakemake --lint` has one complaint, the same for every rule: no conda, no container."""
        said = self.tool("snakemake", "--lint").stdout  # 9.27 prints text even when asked for json
        self.assertEqual(set(re.findall(r"^    \* (.+):$", said, re.MULTILINE)), {ALLOWED_LINT}, said)

    def test_length(self) -> None:
        """The Snakefile is a table of contents of at most 60 lines; logic of 80 belongs in the package."""
        self.assertLessEqual(len((ROOT / "Snakefile").read_text().splitlines()), 60)
        for path in RULE_FILES:
            with self.subTest(path.name):
                self.assertLess(len(path.read_text(encoding="utf-8").splitlines()), 80)

    def test_every_rule_file_is_included(self) -> None:
        """The Snakefile includes each file of workflow/rules once; its one rule, `all`, runs nothing."""
        text = (ROOT / "Snakefile").read_text()
        included = re.findall(r'^include: "(.+)"$', text, re.MULTILINE)
        self.assertEqual(sorted(included), [path.relative_to(ROOT).as_posix() for path in RULE_FILES])
        self.assertEqual(text.count("\nrule "), 1)
        self.assertNotRegex(text, RUNS)

    def test_one_plain_command_a_rule(self) -> None:
        """A rule that makes something ends with one shell line: a subcommand, options, quoted values."""
        commands: list[str] = []
        for text in [text for path in RULE_FILES for text in rules_of(path)]:
            with self.subTest(text.splitlines()[0]):
                if "output:" in text:
                    found = PLAIN_LINE.search(text)
                    commands.append(found[1] if found else "none")
                    self.assertEqual(RUNS.findall(text), ["shell"])
                else:  # a target
                    self.assertNotRegex(text, RUNS)
        self.assertGreaterEqual(len(commands), 7)
        self.assertEqual(len(set(commands)), len(commands), "two rules share a subcommand")
        for command in commands:
            with self.subTest(command):
                self.assertEqual(self.tool("inference-lab", *command.split(), "--help").returncode, 0)

    def test_the_report_lists_everything(self) -> None:
        """`snakemake --report` holds each figure, page and table, where no job has run, without a warning."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.html")
            done = self.tool("snakemake", "--report", report, "--", "all")
            self.assertEqual((done.returncode, "warning" in done.stdout.lower()), (0, False), done.stdout)
            text = report.read_text(encoding="utf-8")
        for path in sorted(ROOT.glob("results/*/*")):
            if path.suffix in {".svg", ".md"} or path.name in {"summary.csv", "verdicts.csv"}:
                with self.subTest(path.relative_to(ROOT)):
                    self.assertIn(f'"{path.relative_to(ROOT).as_posix()}": {{"name"', text)


if __name__ == "__main__":
    unittest.main()
