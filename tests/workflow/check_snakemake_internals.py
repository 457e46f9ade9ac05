"""Does the pinned Snakemake still do what workflow/rules/*.smk relies on beyond its documentation?

One test for each name used, on workflows of a few lines, and one that our own names hide none of Snakemake's.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from tests.workflow.harness import PROGRAMS, Parallel, checkout

TWO_RULES = """
rule b:
    input:
        second
    output:
        "b"
    shell:
        "touch {output}"

rule a:
    input:
        first
    output:
        "a"
    shell:
        "touch {output}"
"""
NO_INPUTS = """
def first(wildcards):
    return []

def second(wildcards):
    return ["a"]
"""


class Workflow:
    """A workflow of one file in a temporary folder."""

    def __init__(self, folder: str) -> None:
        self.root = Path(folder)

    def run(self, text: str, *words: str) -> str:
        """Everything a call says; it must succeed."""
        (self.root / "Snakefile").write_text(text)
        done = subprocess.run(
            [PROGRAMS / "snakemake", "--nocolor", *words],
            cwd=self.root,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "XDG_CACHE_HOME": str(self.root / "cache")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )
        if done.returncode:
            raise AssertionError(done.stdout)
        return done.stdout


class SnakemakeInternals(Parallel):
    """The names of Snakemake that are used although they are not documented."""

    def workflow(self) -> Workflow:
        """A new empty workflow, removed with the test."""
        folder = tempfile.TemporaryDirectory(prefix="inference-lab-checks-")
        self.addCleanup(folder.cleanup)
        return Workflow(folder.name)

    def test_dag_settings(self) -> None:
        """workflow.dag_settings is None while parsing; input functions see -R and --forceall in it."""
        text = 'print("parsing:", workflow.dag_settings)\n' + NO_INPUTS.replace(
            "    return []",
            '    print("asked:", sorted(map(str, workflow.dag_settings.forcerun)),'
            " workflow.dag_settings.forceall)\n    return []",
        )
        flow = self.workflow()
        said = flow.run(text + TWO_RULES, "-n", "-R", "a", "--", "b")
        self.assertIn("parsing: None", said)
        self.assertIn("asked: ['a'] False", said)
        self.assertIn("asked: [] True", flow.run(text + TWO_RULES, "-n", "--forceall", "b"))

    def test_rerun_triggers(self) -> None:
        """workflow.dag_settings.rerun_triggers emptied in an input function: metadata no longer decides."""
        flow = self.workflow()
        flow.run(NO_INPUTS + TWO_RULES, "--cores", "1")
        changed = TWO_RULES.replace("touch", "touch -c")
        self.assertIn("Code has changed", flow.run(NO_INPUTS + changed, "-n"))
        emptied = NO_INPUTS.replace(
            "    return", "    workflow.dag_settings.rerun_triggers = set()\n    return"
        )
        self.assertIn("Nothing to be done", flow.run(emptied + changed, "-n"))

    def test_forcefiles(self) -> None:
        """workflow.dag.forcefiles.add in an input function forces the job of that file, and no other."""
        flow = self.workflow()
        flow.run(NO_INPUTS + TWO_RULES, "--cores", "1")
        forcing = NO_INPUTS.replace(
            '    return ["a"]', '    workflow.dag.forcefiles.add("b")\n    return ["a"]'
        )
        said = flow.run(forcing + TWO_RULES, "-n")
        self.assertIn("rule b:", said)
        self.assertNotIn("rule a:", said)

    def test_forcerules_and_get_rule(self) -> None:
        """workflow.dag.forcerules.discard(workflow.get_rule(name)) keeps --forceall and -R off a rule."""
        flow = self.workflow()
        flow.run(NO_INPUTS + TWO_RULES, "--cores", "1")
        sparing = NO_INPUTS.replace(
            "    return []", '    workflow.dag.forcerules.discard(workflow.get_rule("a"))\n    return []'
        )
        for words in (("--forceall",), ("-R", "a", "b", "--")):
            said = flow.run(sparing + TWO_RULES, "-n", *words, "b")
            self.assertIn("rule b:", said)
            self.assertNotIn("rule a:", said)

    def test_dryrun_and_executor_plugin(self) -> None:
        """workflow.dryrun and .executor_plugin tell a run, a plan and a call that only lists apart."""
        text = NO_INPUTS.replace(
            "    return []",
            '    print("seen:", workflow.dryrun, workflow.executor_plugin is None)\n    return []',
        )
        flow = self.workflow()
        self.assertIn("seen: True False", flow.run(text + TWO_RULES, "-n"))
        self.assertIn("seen: False False", flow.run(text + TWO_RULES, "--cores", "1"))
        self.assertIn("seen: False True", flow.run(text + TWO_RULES, "--summary"))

    def test_is_main_process(self) -> None:
        """workflow.is_main_process is false in the Snakemake that a job starts."""
        text = NO_INPUTS.replace("return []", 'print("main:", workflow.is_main_process)\n    return []')
        flow = self.workflow()
        self.assertIn("main: True", flow.run(text + TWO_RULES, "--cores", "1"))
        said = flow.run(text + TWO_RULES, "--cores", "1", "--mode", "subprocess", "--forceall")
        self.assertIn("main: False", said)

    def test_exit_in_an_input_function(self) -> None:
        """SystemExit(2) in an input function ends the call with that status and no traceback."""
        (root := self.workflow().root).joinpath("Snakefile").write_text(
            NO_INPUTS.replace("return []", "raise SystemExit(2)") + TWO_RULES
        )
        done = subprocess.run(
            [PROGRAMS / "snakemake", "-n"], cwd=root, capture_output=True, text=True, check=False, timeout=120
        )
        self.assertEqual(done.returncode, 2)
        self.assertNotIn("Traceback", done.stderr)

    def test_our_names_hide_none_of_snakemakes(self) -> None:
        """Rule files run in the globals of snakemake.workflow: none of those gets another meaning."""
        with checkout() as lab:
            snakefile = lab.root / "Snakefile"
            snakefile.write_text(
                "BEFORE = dict(globals())\n"
                + snakefile.read_text()
                + "\nHIDDEN = [name for name, value in BEFORE.items() if globals()[name] is not value]"
                + '\nprint("hidden:", HIDDEN)\n'
            )
            said = lab.command(str(PROGRAMS / "snakemake"), "--list-rules").stdout
            self.assertIn("hidden: []", said)
            with snakefile.open("a") as file:
                file.write("\nrules = 1\nprint([n for n, v in BEFORE.items() if globals()[n] is not v])\n")
            self.assertIn("['rules']", lab.command(str(PROGRAMS / "snakemake"), "--list-rules").stdout)
