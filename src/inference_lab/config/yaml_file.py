"""Files of YAML, read with care: no key twice, no aliases that grow beyond measure."""

from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from inference_lab.errors import ConfigError, unread

_MOST = 100_000  # values in a file: twenty times as many as ours has


def read_yaml(file: Path, if_missing: str = "run this in a checkout of the project") -> Any:
    """The value in a YAML file. Raises ConfigError when it is missing, torn, or has one key twice."""
    try:
        loader = _OnceLoader(file.read_text(encoding="utf-8-sig"))  # a spreadsheet writes a byte order mark
        node = loader.get_single_node()
        check_size(node, str(file))
        return loader.construct_document(node) if node else None
    except (OSError, UnicodeDecodeError) as error:
        way_out = if_missing if isinstance(error, FileNotFoundError) else "restore it"
        raise ConfigError(f"{file}: {unread(error)}; {way_out}") from None
    except ConfigError:
        raise
    # PyYAML lets through what its constructors raise: 2026-13-45, !!int "", a value that nests too deep.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise ConfigError(f"{file}: not YAML ({' '.join(str(error).split())}); fix it") from None


def check_size(value: Any, file: str) -> None:
    """Raises ConfigError when the aliases in a value, written out, are more values than anybody writes."""
    if _size(value, {}) > _MOST:
        raise ConfigError(f"{file}: its aliases stand for more than {_MOST} values; write them out")


def _size(value: Any, known: dict[int, int]) -> int:
    """The number of values once every alias is written out; above the limit for one that holds itself."""
    match value:
        case yaml.MappingNode():
            inner = [part for pair in value.value for part in pair]
        case yaml.SequenceNode():
            inner = value.value
        case dict() | list():
            inner = list(value.values() if isinstance(value, dict) else value)
        case _:
            return 1
    if id(value) not in known:
        known[id(value)] = _MOST + 1
        known[id(value)] = 1 + sum(_size(part, known) for part in inner)
    return known[id(value)]


class _OnceLoader(yaml.CSafeLoader):  # in C, as in every wheel: eight times as fast
    """Refuses a key that is in one mapping twice; YAML silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise ConstructorError(None, None, f"key {key.value!r} twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)
