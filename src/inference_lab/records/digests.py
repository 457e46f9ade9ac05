"""Which source files and pinned packages are behind a stage, and digests that only meaning changes.

Imports nothing of what it reads. Comments, docstrings, formatting and annotations never count; behind a
measurement nor do words: what an error or a help text says decides no number.
"""

import ast
import functools
import hashlib
import importlib.util
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement

from inference_lab import errors
from inference_lab.errors import ConfigError, unread
from inference_lab.records.files import sha256_file, sha256_value

PACKAGE = "inference_lab"
SOURCE_ROOT = "src"
PAGES = f"{SOURCE_ROOT}/{PACKAGE}/pages/"
TEMPLATE = ".md.j2"
PINS_FILE = "pyproject.toml"

# Left out of every closure: `errors`; `records`, for which the record's schema number stands; and `config`,
# which admits sections whose values are in the receipt.
_LEFT_OUT = (f"{PACKAGE}.errors.", f"{PACKAGE}.records.", f"{PACKAGE}.config.")
_DISTRIBUTION_OF = {"yaml": "pyyaml"}
_IGNORED_FIELDS = frozenset({"kind", "type_comment", "returns", "annotation"})
# In a class body an annotation makes a field; of what it says, these alone decide anything.
_OF_A_FIELD = frozenset({"ClassVar", "InitVar", "KW_ONLY"})
# What these are given is words for a person.
_OURS = (name for name, value in vars(errors).items() if isinstance(value, type))
_SPEAKS = frozenset({"ArgumentTypeError", *_OURS})
_STATEMENTS = frozenset({"body", "orelse", "finalbody"})
_OF_ANNOTATIONS = frozenset({"typing", "collections.abc"})
_WORDS = frozenset({"help", "description"})  # arguments of argparse
_PIN = re.compile(r"([\w.-]+) *== *([^\s;]+)((?: --hash=sha256:[0-9a-f]{64})*)")
_HOLDS_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
_HAS_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class _Source(NamedTuple):
    digest: str
    imports: tuple[str, ...]


class Sources:
    """The sources and pins of one checkout as they are now: each file is read at most once."""

    def __init__(self, root: Path = Path()) -> None:
        self.root = root
        self._texts: dict[str, bytes] = {}
        self._files: dict[str, str] = {}
        self._closures: dict[tuple[tuple[str, ...], bool], dict[str, str]] = {}
        self._pins: dict[tuple[str, ...], dict[str, str]] = {}

    def file(self, path: str) -> str:
        """sha256 of a file's bytes. Raises OSError when it cannot be read."""
        if path not in self._files:
            self._files[path] = sha256_file(self.root / path)
        return self._files[path]

    def pin_file(self, path: str) -> str:
        """sha256 over names and versions of a file of pins: comments, order and hashes do not count."""
        return sha256_value({name: pin[0] for name, pin in requirements(self.root / path).items()})

    def closure(self, *modules: str, wordless: bool = False) -> dict[str, str]:
        """`{path: digest}` of the given modules and all of the package they import, sorted by path.

        Modules are named inside the package ("experiments.decode_paths"). Imports inside functions count,
        and a page's template. Raises ConfigError when a module has no file.
        """
        if (modules, wordless) not in self._closures:
            found: dict[str, str] = {}
            waiting = [f"{PACKAGE}.{module}" for module in modules]
            while waiting:
                path = module_path(module := waiting.pop(), self.root)
                if path is None:
                    words = "run this in a checkout of the project; `by:` and `figures:` name its modules"
                    raise ConfigError(f"no module {module} under {SOURCE_ROOT}/: {words}")
                if path in found:
                    continue
                found[path], imports = self._source(path, wordless)
                waiting += [name for name in imports if _counts(name) and module_path(name, self.root)]
                template = f"{PAGES}templates/{Path(path).stem}{TEMPLATE}"
                if path.startswith(PAGES) and (self.root / template).is_file():
                    found[template] = self.file(template)
            self._closures[modules, wordless] = dict(sorted(found.items()))
        return dict(self._closures[modules, wordless])

    def digest(self, path: str) -> str:
        """sha256 of what a source says, of a template's bytes."""
        return self.file(path) if path.endswith(TEMPLATE) else self._source(path).digest

    def drop_bytecode(self, paths: Iterable[str]) -> None:
        """Remove the bytecode of these files: Python trusts it by time and size, and times decide nothing."""
        for path in ((self.root / path).resolve() for path in paths):
            elsewhere = Path(importlib.util.cache_from_source(str(path))).parent  # PYTHONPYCACHEPREFIX says
            for folder in {path.parent / "__pycache__", elsewhere}:
                for cached in folder.glob(f"{path.stem}.*.pyc"):
                    cached.unlink(missing_ok=True)  # another process may be as fast

    def pins(self, paths: Iterable[str]) -> dict[str, str]:
        """`{package: version}` pinned for the third-party imports of these files and what they require."""
        of = tuple(path for path in paths if path.endswith(".py"))
        if of not in self._pins:
            wanted: set[str] = set()
            waiting = [name for path in of for name in _distributions(self._source(path).imports)]
            while waiting:
                name = waiting.pop()
                if name in self.pinned and name not in wanted:
                    wanted.add(name)
                    waiting += _requires(name)
            self._pins[of] = {name: self.pinned[name] for name in sorted(wanted)}
        return self._pins[of]

    @functools.cached_property
    def pinned(self) -> dict[str, str]:
        """`{package: version}` of every line of `constraint-dependencies` in pyproject.toml."""
        path = self.root / PINS_FILE
        try:
            lines = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["uv"]["constraint-dependencies"]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {unread(error)}; run this in a checkout of the project") from None
        except (tomllib.TOMLDecodeError, KeyError) as error:
            words = f"no TOML with tool.uv.constraint-dependencies ({error})"
            raise ConfigError(f"{path}: {words}; restore it from git or run workflow/pin") from None
        return {name: version for name, (version, _) in _exact(lines, path).items()}

    def _source(self, path: str, wordless: bool = False) -> _Source:
        if path not in self._texts:
            try:
                self._texts[path] = (self.root / path).read_bytes()
            except OSError as error:
                raise ConfigError(f"{path}: {unread(error)}; restore it from git") from None
        return _source(path, self._texts[path], wordless)


@functools.cache  # equal bytes are worked out once per process: a load looks at its sources four times
def _source(path: str, text: bytes, wordless: bool) -> _Source:
    try:
        tree = ast.parse(text, filename=path)
    except (SyntaxError, ValueError) as error:  # a null byte is a ValueError before Python 3.12
        raise ConfigError(f"{path}: not Python ({error}); correct it or restore it from git") from None
    return _Source(digest_of_tree(tree, wordless=wordless), tuple(dict.fromkeys(_imports(tree, path))))


def module_path(module: str, root: Path = Path()) -> str | None:
    """Path of a package module relative to the checkout, or None when `module` is no module of ours."""
    stem = Path(SOURCE_ROOT, *module.split("."))
    for candidate in (stem.with_suffix(".py"), stem / "__init__.py"):
        if (root / candidate).is_file():
            return candidate.as_posix()
    return None


def digest_of_tree(tree: ast.AST, *, wordless: bool = False) -> str:
    """sha256 over node names and non-empty fields; the same on every supported Python."""
    words: list[str] = []
    _spell(tree, words.append, wordless)
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def _spell(node: object, say: Callable[[str], None], wordless: bool) -> None:
    # `ast.dump` differs between Python versions; names and non-empty fields do not.
    if isinstance(node, ast.AST):
        say(type(node).__name__)
        for field, said in _fields(type(node)):
            value: Any = getattr(node, field, None)
            if field in _STATEMENTS and isinstance(value, list):
                value = _meant(node, value)
            elif field == "values" and isinstance(node, ast.JoinedStr):
                # Python 3.12 alone puts an empty text into a format spec
                value = [part for part in value if getattr(part, "value", None) != ""]
            elif wordless and _is_words(node, field):
                continue
            if value is None or value == []:
                continue
            say(said)
            _spell(value, say, wordless)
        say("/")
    elif isinstance(node, list):
        for item in node:
            _spell(item, say, wordless)
        say("]")
    else:
        say(f"{type(node).__name__} {node!a}")  # repr() spells letters as its Unicode version knows them


@functools.cache
def _fields(kind: type[ast.AST]) -> list[tuple[str, str]]:
    return [(field, f".{field}") for field in sorted(kind._fields) if field not in _IGNORED_FIELDS]


def _meant(node: ast.AST, body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements without docstring, annotations and what is imported for these; fields of a class stay."""
    if isinstance(node, _HAS_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
        body = body[1:]
    spelt: list[ast.stmt] = []
    for statement in body:
        match statement:
            case ast.ImportFrom(module=module, names=names) if module in _OF_ANNOTATIONS:
                spelt += [statement] if any(name.asname for name in names) else []
            case ast.AnnAssign(annotation=annotation) if isinstance(node, ast.ClassDef):
                kinds = _OF_A_FIELD.intersection(re.findall(r"\w+", ast.unparse(annotation)))
                spelt += [statement, *(ast.Expr(ast.Constant(kind)) for kind in sorted(kinds))]
            case ast.AnnAssign(target=target, value=value):
                spelt += [ast.Assign([target], value)] if value else []
            case _:
                spelt.append(statement)
    return spelt


def _is_words(node: ast.AST, field: str) -> bool:
    """Whether a field holds words for a person alone: what an error of ours or a help text says."""
    match node:
        case ast.Raise(exc=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))):
            return field == "cause" and name in _SPEAKS
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return field in ("args", "keywords") and name in _SPEAKS
        case ast.keyword(arg=name, value=ast.Constant()):
            return field == "value" and name in _WORDS
        case _:
            return False


def _imports(tree: ast.Module, path: str) -> Iterator[str]:
    """Every module a file may import, with `from a import b` counted as both a and a.b."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module is None:
                words = "a relative import; write inference_lab. in full"
                raise ConfigError(f"{path} line {node.lineno}: {words}")
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:  # no expression holds an import
            waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, _HOLDS_STATEMENTS)]


def _counts(module: str) -> bool:
    return module.startswith(f"{PACKAGE}.") and not f"{module}.".startswith(_LEFT_OUT)


def normal(name: str) -> str:
    """A distribution's name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).strip().lower()


def _distributions(modules: Iterable[str]) -> Iterator[str]:
    for top in {module.partition(".")[0] for module in modules}:
        if top != PACKAGE and top not in sys.stdlib_module_names:
            yield _DISTRIBUTION_OF.get(top, normal(top))


def requirements(path: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """`{distribution: (version, hashes)}` of a file of pins. Raises ConfigError for an open version."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {unread(error)}; restore it from git") from None
    return _exact(filter(None, (line.partition("#")[0].strip() for line in lines)), path)


def _exact(lines: Iterable[str], file: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for line in lines:
        match = _PIN.fullmatch(line)
        if match is None:
            raise ConfigError(f"{file}: {line!r} pins no exact version; write name==version")
        found[normal(match[1])] = (match[2], tuple(word.partition(":")[2] for word in match[3].split()))
    return found


@functools.cache
def _requires(distribution: str) -> tuple[str, ...]:
    # Markers are not evaluated (extras excepted), so every platform gives the same answer.
    try:
        lines = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return ()
    parsed = [Requirement(line) for line in lines]
    return tuple(normal(r.name) for r in parsed if "extra" not in str(r.marker or ""))
