"""Do Snakefile and rules keep their form: linted, formatted, short, one plain command a rule?"""

import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
RULE_FILES = sorted((ROOT / "workflow/rules").glob("*.smk"))
ALLOWED_LINT = "Specify a conda environment or container for each rule."  # pins and uv stand for it
WORD = r"(--[a-z]+|\{[a-z.]+:q\})"  # an option, or something quoted for the shell
PLAIN_LINE = re.compile(rf'\n    shell:\n        "exec inference-lab ([a-z]+)(?: {WORD})*"\s*\Z')


def rules_of(path: Path) -> dict[str, str]:
    """`{name: text}` of the rules a file writes out; `use rule` takes over another one's command."""
    text = re.sub(r"^ *#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    parts = re.split(r"^(?=(?:use )?(?:rule|checkpoint) )", text, flags=re.MULTILINE)[1:]
    written = [part for part in parts if not part.startswith("use ")]
    return {part.split()[1].rstrip(":"): part for part in written}


class LintTest(unittest.TestCase):
    """The workflow's own files."""

    def tool(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A finished call of an installed program at the top of the checkout, both streams in one."""
        return subprocess.run(
            [PROGRAMS / words[0], *words[1:]],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def test_snakemake_misses_conda_alone(self) -> None:
        """`snakemake --lint` has one complaint, the same for every rule: no conda, no container."""
        said = self.tool("snakemake", "--lint").stdout  # 9.27 prints text even when asked for json
        self.assertEqual(set(re.findall(r"^    \* (.+):$", said, re.MULTILINE)), {ALLOWED_LINT}, said)

    def test_format(self) -> None:
        """snakefmt would change nothing."""
        done = self.tool("snakefmt", "--check", "Snakefile", "workflow/rules")
        self.assertEqual(done.returncode, 0, done.stdout)

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
        self.assertEqual(list(rules_of(ROOT / "Snakefile")), ["all"])
        self.assertNotRegex(text, r"\b(shell|run|script|notebook|wrapper):")

    def test_one_plain_command_a_rule(self) -> None:
        """A rule's last word is one shell line: one subcommand that exists, options, quoted values."""
        commands: dict[str, str] = {}
        for path in RULE_FILES:
            for name, text in rules_of(path).items():
                with self.subTest(rule=name):
                    found = PLAIN_LINE.search(text)
                    self.assertIsNotNone(found, text)
                    self.assertNotRegex(text, r"\b(run|script|notebook|wrapper):")
                    commands[name] = found[1] if found else ""
        self.assertGreaterEqual(len(commands), 7)
        self.assertEqual(len(set(commands.values())), len(commands), "two rules share a subcommand")
        for name, command in commands.items():
            with self.subTest(rule=name, command=command):
                self.assertEqual(self.tool("inference-lab", command, "--help").returncode, 0)


if __name__ == "__main__":
    unittest.main()
