"""Does the pinned Snakemake still do what workflow/rules/*.smk relies on beyond its documentation?

One row for each name used, on a workflow of two rules, and one that our own names hide none of Snakemake's.
"""

import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.workflow.harness import Checkout, Parallel, checkout

WORKFLOW = """
print("parsing:", workflow.dag_settings)

def first(wildcards):
    {first}
    return []

def second(wildcards):
    {second}
    return ["a"]

rule b:
    input: second
    output: "b"
    shell: "{touch} {{output}}"

rule a:
    input: first
    output: "a"
    shell: "{touch} {{output}}"
"""
RUN = ("--cores", "1")


class Call(NamedTuple):
    """A call of Snakemake, what it must say, and the rule that it must leave alone."""

    words: tuple[str, ...]
    says: tuple[str, ...]
    spares: str = "rule nobody:"


# What the name does: (the statement in an input function, of rule a or b; calls). Both rules ran before.
ASKED = 'print("asked:", sorted(map(str, workflow.dag_settings.forcerun)), workflow.dag_settings.forceall)'
EMPTIED = "workflow.dag_settings.rerun_triggers = set()"
SPARED = 'workflow.dag.forcerules.discard(workflow.get_rule("a"))'
KIND = 'print("seen:", workflow.dryrun, workflow.executor_plugin is None)'
MAIN = 'print("main:", workflow.is_main_process)'
NOTHING = "Nothing to be done"
INTERNALS: dict[str, tuple[dict[str, str], list[Call]]] = {
    "dag_settings is None while parsing; an input function sees -R and --forceall in it": (
        {"first": ASKED},
        [
            Call(("-n", "-R", "a", "--", "b"), ("parsing: None", "asked: ['a'] False")),
            Call(("-n", "--forceall", "b"), ("asked: [] True",)),
        ],
    ),
    "metadata decides where nobody emptied rerun_triggers": (
        {"touch": "touch -c"},
        [Call(("-n",), ("Code has changed",))],
    ),
    "dag_settings.rerun_triggers emptied in an input function: metadata no longer decides": (
        {"touch": "touch -c", "first": EMPTIED, "second": EMPTIED},
        [Call(("-n",), (NOTHING,))],
    ),
    "dag.forcefiles.add in an input function forces the job of that file, and no other": (
        {"second": 'workflow.dag.forcefiles.add("b")'},
        [Call(("-n",), ("rule b:",), "rule a:")],
    ),
    "dag.forcerules.discard(get_rule(name)) keeps --forceall and -R off a rule": (
        {"first": SPARED},
        [
            Call(("-n", "--forceall", "b"), ("rule b:",), "rule a:"),
            Call(("-n", "-R", "a", "b", "--", "b"), ("rule b:",), "rule a:"),
        ],
    ),
    "dryrun and executor_plugin tell a run, a plan and a call that only lists apart": (
        {"first": KIND},
        [
            Call(("-n",), ("seen: True False",)),
            Call((*RUN, "--forceall"), ("seen: False False",)),
            Call(("--summary",), ("seen: False True",)),
        ],
    ),
    "is_main_process is false in the Snakemake that a job starts": (
        {"first": MAIN},
        [
            Call((*RUN, "--forceall"), ("main: True",)),
            Call((*RUN, "--mode", "subprocess", "--forceall"), ("main: False",)),
        ],
    ),
}


class SnakemakeInternals(Parallel):
    """The names of Snakemake that are used although they are not documented."""

    def call(self, changes: dict[str, str], *words: str, lab: Checkout) -> subprocess.CompletedProcess[str]:
        """A finished call on the workflow with these changes, both streams in one."""
        text = WORKFLOW.format(**{"first": "pass", "second": "pass", "touch": "touch"} | changes)
        (lab.root / "Snakefile").write_text(text)
        return lab.command("snakemake", "--nocolor", *words)

    def test_each_name(self) -> None:
        """Every row of INTERNALS holds."""
        for name, (changes, calls) in INTERNALS.items():
            with self.subTest(name), tempfile.TemporaryDirectory(prefix="inference-lab-checks-") as folder:
                lab = Checkout(Path(folder), Path(folder))
                self.call({}, *RUN, lab=lab)
                for words, says, spares in calls:
                    done = self.call(changes, *words, lab=lab)
                    said = done.stdout + done.stderr
                    self.assertEqual(done.returncode, 0, said)
                    self.assertEqual([text for text in says if text not in said], [], said)
                    self.assertNotIn(spares, said)

    def test_exit_in_an_input_function(self) -> None:
        """SystemExit(2) in an input function ends the call with that status and no traceback."""
        with tempfile.TemporaryDirectory(prefix="inference-lab-checks-") as folder:
            lab = Checkout(Path(folder), Path(folder))
            done = self.call({"first": "raise SystemExit(2)"}, "-n", lab=lab)
        self.assertEqual(done.returncode, 2)
        self.assertNotIn("Traceback", done.stderr)

    def test_our_names_hide_none_of_snakemakes(self) -> None:
        """Rule files run in the globals of snakemake.workflow: none of those gets another meaning."""
        hidden = "\nprint('hidden:', [n for n, value in BEFORE.items() if globals()[n] is not value])\n"
        with checkout() as lab:
            snakefile = lab.root / "Snakefile"
            text = f"BEFORE = dict(globals())\n{snakefile.read_text()}"
            for more, found in (("", "hidden: []"), ("\nrules = 1", "hidden: ['rules']")):
                snakefile.write_text(text + more + hidden)
                self.assertIn(found, lab.command("snakemake", "--list-rules").stdout)
