"""Which sources and pins stand behind a stage, and digests that only meaning changes."""

import ast
import contextlib
import sys
import unittest
from pathlib import Path
from unittest import mock

from inference_lab.errors import ConfigError
from inference_lab.records.digests import Sources, digest_of_tree
from inference_lab.records.stages import package_files
from tests import checkout

FUNCTION = '''"""What it answers."""
import numpy as np


def attend(x, y=2):
    """(T, C) -> (T, C)."""
    return np.exp(x) * y + 1  # a comment
'''
SAME_MEANING = {
    "no comment": FUNCTION.replace("  # a comment", ""),
    "another docstring": FUNCTION.replace("(T, C) -> (T, C).", "What it returns."),
    "no docstrings": FUNCTION.replace('"""What it answers."""\n', "").replace(
        '    """(T, C) -> (T, C)."""\n', ""
    ),
    "another layout": FUNCTION.replace("(x, y=2)", "(\n    x,\n    y = 2,\n)").replace("+ 1", "+ (1)"),
    "a type comment": FUNCTION.replace("(x, y=2):", "(x, y=2):  # type: (int, int) -> int"),
    "other line ends": FUNCTION.replace("\n", "\r\n"),
    "annotations": FUNCTION.replace("(x, y=2):", "(x: NDArray[Any], y: float = 2) -> 'NDArray[Any]':"),
    "what annotations import": FUNCTION.replace(
        "import numpy as np\n",
        "import numpy as np\nfrom typing import Any\nfrom collections.abc import Sequence\n",
    ),
    "a variable's annotation": FUNCTION.replace("    return", "    z: int\n    return"),
}
OTHER_MEANING = {
    "an operator": FUNCTION.replace("* y", "/ y"),
    "a default": FUNCTION.replace("y=2", "y=3"),
    "a number's type": FUNCTION.replace("+ 1", "+ 1.0"),
    "a truth for a number": FUNCTION.replace("+ 1", "+ True"),
    "a name": FUNCTION.replace("np.exp", "np.log"),
    "an import": FUNCTION.replace("import numpy as np", "import numpy"),
    "an order": FUNCTION.replace("(x, y=2)", "(y, x=2)"),
    "a statement after the docstring": FUNCTION.replace("    return", '    "text"\n    return'),
    "None for nothing": FUNCTION.replace("return np.exp(x) * y + 1", "return"),
    "an import under another name": FUNCTION.replace(
        "import numpy as np\n", "import numpy as np\nfrom typing import Any as np\n"
    ),
    "a string that is no docstring": FUNCTION.replace('"""What it answers."""', 'x = """What it answers."""'),
}
# a source that speaks to a person, and others that say the same in other words
SPEAKS = """
def measure(x, add):
    add("--rounds", type=int, help="how many")
    status = "timeout"
    if x < 1:
        raise MeasurementRefused(f"{x!r} is below 1; give more") from None
    raise argparse.ArgumentTypeError("no number")
"""
OTHER_WORDS = {
    "an error's text": SPEAKS.replace("is below 1; give more", "must be 1 or more"),
    "what an error's text holds": SPEAKS.replace("{x!r} is", "x is"),
    "an error's cause": SPEAKS.replace(" from None", " from error"),
    "an option's error": SPEAKS.replace("no number", "not a number"),
    "a help text": SPEAKS.replace("how many", "how often"),
}
OTHER_DEEDS = {
    "the bound of an error": SPEAKS.replace("x < 1", "x < 2"),
    "the kind of an error": SPEAKS.replace("MeasurementRefused", "ConfigError"),
    "no error": SPEAKS.replace("raise MeasurementRefused", "MeasurementRefused").replace(" from None", ""),
    "a text that is recorded": SPEAKS.replace('"timeout"', '"truncated"'),
    "an error that is not ours": SPEAKS.replace("argparse.ArgumentTypeError", "Ended"),
    "another option": SPEAKS.replace("--rounds", "--round"),
}
FIELDS = """
@dataclass
class Cell:
    size: int = 1
    name: str
"""
OTHER_FIELDS = {
    "no field": FIELDS.replace("size: int = 1", "size = 1"),
    "a variable of the class": FIELDS.replace("size: int", "size: ClassVar[int]"),
    "one to start with": FIELDS.replace("size: int", "size: 'InitVar[int]'"),
    "one less": FIELDS.replace("    name: str\n", ""),
    "another order": FIELDS.replace("    name: str\n", "").replace("    size", "    name: str\n    size"),
}
# everything in which the grammar or the parser of 3.11, 3.12 and 3.13 could differ
EVERY_SYNTAX = r'''
import a.b as c
from __future__ import annotations
x: int = 1 if (y := 2) else -0.0
s = "é" 'joined' u"kind" rf"{x!r:>{y}}{{}}" f"{x=}" f"{x:}" f"a{x}b" "c" f"{x:{y}.{y}}" f""
s = "\u1c89 \U0001fae9 \ud800 \u200b"
n = 1_000, 0x10, 1e400, 1j, b"\0\xff", ..., None, True, 10**30
def f(a, /, b: "T" = 1, *args, c=None, **kw) -> None: ...
async def g():
    async with a as b, c: await d
    async for i in x: yield i
    return [i async for i in y if i] + [*z]
class C(B, metaclass=M):
    """doc"""
    @property
    def p(self): "doc"; return lambda *a, **k: (yield)
try: pass
except* (A, B) as e: raise e from None
else: pass
finally: del x, y[1:2, ::3]
match p:
    case {"k": [1, *rest], **kw} if kw: pass
    case C(x=None) | "s" | -1 | 1+2j as z: pass
    case _: global q
with (open(a) as b, open(c) as d): assert b, f"{d}"
while not x < y <= z is not None: break
else: z @= {**a, "b": {1, 2}, "c": {k: v for k, v in w}}
print(*a, **b, c=(d, *e)); x = yield_ = a[b](c).d
for i, (j, *k) in x: continue
'''


def digest(text: str, *, wordless: bool = False) -> str:
    """The digest of a source text."""
    return digest_of_tree(ast.parse(text, type_comments=True), wordless=wordless)


class DigestTest(unittest.TestCase):
    """The digest of one source."""

    def test_what_a_reader_sees_alone_voids_nothing(self) -> None:
        """Comments, docstrings, formatting, line ends and annotations leave the digest as it is."""
        for what, text in SAME_MEANING.items():
            with self.subTest(what):
                self.assertNotEqual(text, FUNCTION)
                self.assertEqual(digest(text), digest(FUNCTION))

    def test_every_change_of_meaning_is_seen(self) -> None:
        """One operator, default, type, name or statement gives another digest, and no two the same."""
        found = {what: digest(text) for what, text in OTHER_MEANING.items()}
        self.assertEqual(len({*found.values(), digest(FUNCTION)}), len(found) + 1, found)

    def test_words_decide_no_number(self) -> None:
        """What an error or a help text says leaves a measurement's digest alone, not that of its tests."""
        for what, text in OTHER_WORDS.items():
            with self.subTest(what):
                self.assertEqual(digest(text, wordless=True), digest(SPEAKS, wordless=True))
                self.assertNotEqual(digest(text), digest(SPEAKS))
        found = {what: digest(text, wordless=True) for what, text in OTHER_DEEDS.items()}
        self.assertEqual(len({*found.values(), digest(SPEAKS, wordless=True)}), len(found) + 1, found)

    def test_an_annotation_makes_a_field(self) -> None:
        """In a class the type of a field does not count, that it is one, and of which kind, does."""
        self.assertEqual(digest(FIELDS.replace("int", "float")), digest(FIELDS))
        found = {what: digest(text) for what, text in OTHER_FIELDS.items()}
        self.assertEqual(len({*found.values(), digest(FIELDS)}), len(found) + 1, found)


class ClosureTest(unittest.TestCase):
    """The sources and pins of one checkout."""

    def setUp(self) -> None:
        """A small checkout of its own for every test."""
        checkout.enter(self)

    def test_imports_inside_functions_count(self) -> None:
        """The closure follows every import of the package, the late ones too, and nothing else."""
        self.assertEqual(
            list(Sources().closure("experiments.decode_paths")),
            [
                "src/inference_lab/experiments/decode_paths.py",
                "src/inference_lab/mechanisms/attention.py",
                "src/inference_lab/timing/__init__.py",
                "src/inference_lab/timing/protocol.py",
            ],
        )

    def test_errors_and_records_stand_outside(self) -> None:
        """A change in errors or records changes no closure."""
        Path("src/inference_lab/stream_load").mkdir()
        checkout.edit("src/inference_lab/timing/protocol.py", "clock = 1", "import inference_lab.errors")
        before = Sources().closure("experiments.decode_paths")
        for path in ("errors.py", "records/samples.py", "unused.py"):
            Path("src/inference_lab", path).write_text("import pandas\nchanged = True\n")
        self.assertEqual(Sources().closure("experiments.decode_paths"), before)

    def test_circles_and_packages_are_followed_to_their_end(self) -> None:
        """Modules that import each other are each counted once; a package counts by its __init__."""
        Path("src/inference_lab/timing/protocol.py").write_text(
            "from inference_lab import experiments\nfrom inference_lab.mechanisms import attention\n"
        )
        checkout.edit(
            "src/inference_lab/mechanisms/attention.py",
            "import numpy",
            "import inference_lab.timing.protocol, numpy",
        )
        found = list(Sources().closure("mechanisms.attention"))
        stems = [Path(path).stem for path in found]
        self.assertEqual(stems, ["__init__", "__init__", "attention", "protocol"])

    def test_a_page_has_its_template(self) -> None:
        """An edited template is a change of its page; it is a source and no Python."""
        template = Path("src/inference_lab/pages/templates/knee.md.j2")
        template.parent.mkdir(parents=True)
        template.with_name("report.md.j2").touch()
        Path("src/inference_lab/pages/knee.py").write_text("import numpy\n")
        closures: list[dict[str, str]] = []
        for text in ("# {{ title }}", "# {{ name }}"):
            template.write_text(text)
            closures.append(Sources().closure("pages.knee"))
        changed = {path for path in closures[1] if closures[0][path] != closures[1][path]}
        self.assertEqual(changed, {template.as_posix()})
        self.assertEqual(set(closures[1]), {"src/inference_lab/pages/knee.py", template.as_posix()})
        self.assertEqual(Sources().pins(closures[1]), {"numpy": "2.4.6"})
        self.assertIn(template.as_posix(), package_files(Path()))

    def test_what_cannot_be_followed_is_refused(self) -> None:
        """A missing module, broken Python and a relative import are errors, never a smaller closure."""
        broken = {
            "def f(:": r"not Python \(invalid syntax \(protocol.py, line 1\)\)",
            "x = 1\0": "not Python",
            "x = '\udc80'": "not Python",
            "def f():\n    from . import attention": "line 2: a relative import",
            "from .attention import attend": "line 1: a relative import",
        }
        with self.assertRaisesRegex(ConfigError, "no module inference_lab.figures.none under src/"):
            Sources().closure("figures.none")
        for text, words in broken.items():
            with self.subTest(text):
                Path("src/inference_lab/timing/protocol.py").write_text(text, errors="surrogateescape")
                with self.assertRaisesRegex(ConfigError, words) as raised:
                    Sources().closure("experiments.decode_paths")
                self.assertIn("src/inference_lab/timing/protocol.py", str(raised.exception))
                self.assertNotIn("\n", str(raised.exception))

    def test_another_folder_is_no_checkout(self) -> None:
        """Outside a checkout the way out is told: go into one."""
        Path("elsewhere").mkdir()
        with contextlib.chdir("elsewhere"):
            for reads in (lambda: Sources().closure("mechanisms.attention"), lambda: Sources().pinned):
                words = "no (such file|module).* run this in a checkout of the project"
                with self.assertRaisesRegex(ConfigError, words):
                    reads()

    def test_pins_are_those_of_what_is_imported(self) -> None:
        """A stage is pinned to what its closure imports and what that requires."""
        sources = Sources()
        for module, pins in (
            ("experiments.decode_paths", {"numpy": "2.4.6"}),
            ("analysis.timing", {}),
            ("figures.latency", {"matplotlib": "3.11.2", "numpy": "2.4.6", "pillow": "13.0.0"}),
        ):
            self.assertEqual(sources.pins(sources.closure(module)), pins)

    def test_pins_that_pin_nothing_are_refused(self) -> None:
        """A version range, a missing list and broken TOML are errors that name pyproject.toml."""
        for text, words in {
            '[tool.uv]\nconstraint-dependencies = ["numpy>=2"]': "'numpy>=2' pins no exact version",
            "[tool.uv]": "no TOML with tool.uv.constraint-dependencies",
            "[tool.uv": r"no TOML with .* \(Expected ']'",
        }.items():
            with self.subTest(text):
                Path("pyproject.toml").write_text(text)
                with self.assertRaisesRegex(ConfigError, f"^pyproject.toml: .*{words}"):
                    _ = Sources().pinned

    def test_names_are_compared_as_indexes_do(self) -> None:
        """Letters' case, dots and underscores in a package's name make no difference to its pin."""
        Path("pyproject.toml").write_text(
            '[tool.uv]\nconstraint-dependencies = ["Prometheus_Client==0.26.0", "PyYAML == 6.0.4"]\n'
        )
        Path("tests/test_attention.py").write_text("import yaml\nimport prometheus_client.parser\n")
        pins = {"prometheus-client": "0.26.0", "pyyaml": "6.0.4"}
        self.assertEqual(Sources().pins(["tests/test_attention.py"]), pins)

    def test_pins_in_a_file_count_by_name_and_version(self) -> None:
        """Comments, order, hashes and spelling of a file of pins are words; a version or a package is not."""
        file = Path("requirements.txt")
        file.write_text("torch==2.0+cpu\nvllm-cpu==0.32.0\n")
        before = Sources().pin_file("requirements.txt")
        file.write_text(f"# pins\n\nvLLM_cpu==0.32.0 --hash=sha256:{'a' * 64}  # fast\ntorch==2.0+cpu\n")
        self.assertEqual(Sources().pin_file("requirements.txt"), before)
        for text in ("torch==2.0+cpu\nvllm-cpu==0.32.1\n", "torch==2.0+cpu\n"):
            file.write_text(text)
            self.assertNotEqual(Sources().pin_file("requirements.txt"), before)
        file.write_text("torch>=2\n")
        with self.assertRaisesRegex(ConfigError, "'torch>=2' pins no exact version; write name==version"):
            Sources().pin_file("requirements.txt")
        with self.assertRaisesRegex(ConfigError, "^none.txt: no such file"):
            Sources().pin_file("none.txt")

    def test_bytecode_of_a_stage_is_dropped(self) -> None:
        """What Python would trust by time and size alone goes for the files named, wherever it lies."""
        here = Path("src/inference_lab/mechanisms/__pycache__")
        elsewhere = Path("bytecode").resolve()
        self.enterContext(mock.patch.object(sys, "pycache_prefix", str(elsewhere)))
        for cache in (here, elsewhere / here.parent.resolve().relative_to("/")):
            cache.mkdir(parents=True)
            for name in ("attention.cpython-311", "attention.cpython-313.opt-1", "attention_.cpython-311"):
                (cache / f"{name}.pyc").touch()
            for _ in range(2):
                Sources().drop_bytecode(["src/inference_lab/mechanisms/attention.py"])
                self.assertEqual([path.name for path in cache.iterdir()], ["attention_.cpython-311.pyc"])


if __name__ == "__main__":
    unittest.main()
