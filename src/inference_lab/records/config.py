"""Is config.yaml one that may be run? Closed: an unknown key is found before anything is planned."""

import difflib
import functools
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from yaml.constructor import ConstructorError

from inference_lab.errors import ConfigError, unread

SCHEMA_FILE = Path("workflow/schemas/config.schema.yaml")


def _is_integer(_: object, value: object) -> bool:
    """Whether a value is whole by its type: JSON schema would take 2.0 for one, NumPy does not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(_: object, value: object) -> bool:
    """Whether a value is a number that can be compared: NaN would pass every bound, 10**400 is no float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


_TYPES = Draft202012Validator.TYPE_CHECKER.redefine_many({"integer": _is_integer, "number": _is_number})
_Validator = extend(Draft202012Validator, type_checker=_TYPES)


_FORMATS = FormatChecker(formats=())


@_FORMATS.checks("moment", ValueError)
def _is_moment(value: object) -> bool:
    """Whether a text is a date and time of the calendar, and may stand in the name of a folder."""
    return not isinstance(value, str) or ("/" not in value and bool(datetime.fromisoformat(value)))


_MOST = 100_000  # values in a file: twenty times as many as any of ours says


# What PyYAML lets through when a scalar is no value of its type (2026-13-45, !!int "") or nests too deep.
_NO_VALUE = (ValueError, LookupError, AttributeError, TypeError, RecursionError)


def load_config(file: Path = Path("config.yaml")) -> dict[str, Any]:
    """The checked config of this checkout. Raises ConfigError when it is missing, torn or not allowed."""
    config = read_yaml(file)
    check_config(config, file.name)
    return config


def read_yaml(file: Path, if_missing: str = "run this in a checkout of the project") -> Any:
    """What a YAML file says. Raises ConfigError when it is missing, torn, or says one key twice."""
    try:
        text = file.read_text(encoding="utf-8-sig")  # a spreadsheet writes a mark of its own in front
        loader = _OnceLoader(text)
        node = loader.get_single_node()
        small = _size(node, {}) <= _MOST
        value = loader.construct_document(node) if small and node else None
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; {if_missing}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {unread(error)}; restore it") from None
    except (yaml.YAMLError, *_NO_VALUE) as error:
        raise ConfigError(f"{file}: not YAML ({' '.join(str(error).split())}); mend it") from None
    if not small:
        raise ConfigError(f"{file}: its aliases stand for more than {_MOST} values; write them out")
    return value


def _size(value: Any, known: dict[int, int]) -> int:
    """How many values stand there once every alias is written out; more than any that names itself."""
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
    """Refuses a key that stands twice in one mapping, of which YAML silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise ConstructorError(None, None, f"key {key.value!r} stands twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def check_config(config: Mapping[str, Any], file: str = "config.yaml") -> None:
    """Raises ConfigError with the first thing that is wrong: key, what it says, what is allowed."""
    schema = read_schema(SCHEMA_FILE)
    if _size(config, {}) > _MOST:
        raise ConfigError(f"{file}: its aliases stand for more than {_MOST} values; write them out")
    check_schema(config, schema, file)
    for name, section in config["experiments"].items():
        _check_axes(f"{file}: experiments.{name}.measure", section["measure"], schema)
        _check_calibration(f"{file}: experiments.{name}.judge.calibration", name, config["experiments"])


def read_schema(path: Path) -> Mapping[str, Any]:
    """A JSON schema written as YAML."""
    return yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)


@functools.cache
def _receipts() -> Mapping[str, Any]:
    """The schema of receipts of this code: a record is read outside of a checkout, too."""
    return read_schema(Path(__file__).parents[3] / "workflow/schemas/receipt.schema.yaml")


def check_receipt(path: Path, receipt: Mapping[str, Any]) -> None:
    """Raises ConfigError with the first thing that a receipt may not say; a manifest is closed."""
    of = "manifest" if path.name.endswith("manifest.json") else "receipt"
    check_schema(receipt, {**_receipts(), "$ref": f"#/$defs/{of}"}, str(path))


def check_schema(value: Any, schema: Mapping[str, Any], file: str) -> None:
    """Raises ConfigError with the first finding of a JSON schema, in one line of our words."""
    findings: Iterable[ValidationError] = _Validator(schema, format_checker=_FORMATS).iter_errors(value)
    for finding in sorted(findings, key=lambda e: list(map(str, e.absolute_path))):
        place = ".".join(map(str, finding.absolute_path)) or "the top level"
        raise ConfigError(f"{file}: {place}: {_in_words(finding)}")


def _in_words(finding: ValidationError) -> str:
    rule: Any = finding.validator_value
    value: Any = finding.instance
    schema: Any = finding.schema
    match finding.validator:
        case "additionalProperties" if rule is False:
            return _unknown_key(value, schema.get("properties", {}))
        case "required":
            missing = next(key for key in rule if key not in value)
            return f"key {missing!r} is missing; needed are {', '.join(rule)}"
        case "maxProperties":
            return f"varies {', '.join(value)}: one unknown at a time; make another experiment of the second"
        case "minProperties" | "minItems" if not value:
            return "is empty; it needs one entry"
        case "minItems" | "maxItems":
            return (
                f"has {len(value)} entries, must have {'at least' if len(value) < rule else 'at most'} {rule}"
            )
        case "enum":
            return f"is {value!r}, must be one of {', '.join(map(str, rule))}"
        case "minimum":
            return f"is {value!r}, must be at least {rule}"
        case "exclusiveMinimum":
            return f"is {value!r}, must be more than {rule}"
        case "type":
            return f"is {value!r}, must be of type {rule}{_if_a_number(value)}"
        case "format":
            return f"is {value!r}, must be a date and time such as 2026-12-01T10:00:00+00:00"
        case "pattern":
            return f"{value!r} is not of the form {rule}"
        case "uniqueItems":
            return f"is {value!r}, each value may stand there once"
        case _:
            return finding.message.splitlines()[0]


def _if_a_number(value: Any) -> str:
    """How to write a number that YAML or --config took for text, such as 1e3."""
    try:
        number = float(value) if isinstance(value, str) else None
    except ValueError:
        return ""
    return "" if number is None else f" (it was taken for text: write {number!r} without quotes)"


def _unknown_key(value: Mapping[str, Any], known: Iterable[str]) -> str:
    key = next(key for key in value if key not in known)
    near = difflib.get_close_matches(str(key), list(known), 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown key {key!r}{hint}; allowed are {', '.join(known)}"


def _check_axes(place: str, measure: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Every axis that could be varied is either varied or fixed; the baseline is one of the paths."""
    name = f"measure_{measure['by']}"
    if name not in schema["$defs"]:
        raise ConfigError(f"{SCHEMA_FILE}: $defs has no {name!r}, which says what {place} may hold; write it")
    declared = schema["$defs"][name]["properties"]
    axis, fixed = next(iter(measure["vary"])), measure.get("fixed", {})
    for name in declared["vary"]["properties"]:
        if name in declared.get("fixed", {}).get("properties", {}) and (name == axis) == (name in fixed):
            if name == axis:
                raise ConfigError(f"{place}: {axis} is both varied and fixed; take it out of one")
            raise ConfigError(f"{place}.fixed: key {name!r} is missing; it is neither varied nor fixed")
    if "baseline" in measure and measure["baseline"] not in measure["paths"]:
        paths = ", ".join(measure["paths"])
        raise ConfigError(f"{place}.baseline: is {measure['baseline']!r}, must be one of paths: {paths}")


def _check_calibration(place: str, name: str, experiments: Mapping[str, Any]) -> None:
    """What a record leans on is another experiment, and leans on nothing that leans on it."""
    seen = [name]
    while (leans_on := experiments[seen[-1]]["judge"].get("calibration")) is not None:
        if leans_on not in experiments:
            raise ConfigError(f"{place}: names {leans_on!r}, which is no experiment; name one")
        if leans_on in seen:
            raise ConfigError(f"{place}: leads back to {leans_on!r}; a calibration leans on nothing")
        seen.append(leans_on)
