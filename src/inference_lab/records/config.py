"""Is config.yaml one that may be run? Closed: an unknown key is found before anything is planned."""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from inference_lab.errors import ConfigError

SCHEMA_FILE = Path("workflow/schemas/config.schema.yaml")


def load_config(file: Path = Path("config.yaml")) -> dict[str, Any]:
    """The checked config of this checkout. Raises ConfigError when it is missing, torn or not allowed."""
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; run this in a checkout of the project") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: not YAML ({' '.join(str(error).split())}); mend it") from None
    check_config(config, file.name)
    return config


def check_config(config: Mapping[str, Any], file: str = "config.yaml") -> None:
    """Raises ConfigError with the first thing that is wrong: key, what it says, what is allowed."""
    check_schema(config, SCHEMA_FILE, file)
    for name, section in config["experiments"].items():
        _check_axes(f"{file}: experiments.{name}.measure", section["measure"])


def check_schema(value: Any, schema_file: Path, file: str) -> None:
    """Raises ConfigError with the first finding of a JSON schema, in one line of our words."""
    schema = yaml.safe_load(schema_file.read_text(encoding="utf-8"))
    findings = sorted(
        Draft202012Validator(schema).iter_errors(value), key=lambda e: list(map(str, e.absolute_path))
    )
    for finding in findings:
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
        case "minProperties":
            return "is empty; it needs one entry"
        case "enum":
            return f"is {value!r}, must be one of {', '.join(map(str, rule))}"
        case "minimum":
            return f"is {value!r}, must be at least {rule}"
        case "exclusiveMinimum":
            return f"is {value!r}, must be more than {rule}"
        case "type":
            return f"is {value!r}, must be of type {rule}"
        case "pattern":
            return f"{value!r} is not of the form {rule}"
        case "uniqueItems":
            return f"is {value!r}, each value may stand there once"
        case _:
            return finding.message.splitlines()[0]


def _unknown_key(value: Mapping[str, Any], known: Iterable[str]) -> str:
    key = next(key for key in value if key not in known)
    near = difflib.get_close_matches(str(key), list(known), 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown key {key!r}{hint}; allowed are {', '.join(known)}"


def _check_axes(place: str, measure: Mapping[str, Any]) -> None:
    axis = next(iter(measure["vary"]))
    if axis in measure["fixed"]:
        raise ConfigError(f"{place}: {axis} is both varied and fixed; take it out of one")
    axes = {"batch_size", "sequence_length"} - {axis}
    if missing := sorted(axes - set(measure["fixed"])):
        raise ConfigError(f"{place}.fixed: key {missing[0]!r} is missing; it is neither varied nor fixed")
    if measure["baseline"] not in measure["paths"]:
        paths = ", ".join(measure["paths"])
        raise ConfigError(f"{place}.baseline: is {measure['baseline']!r}, must be one of paths: {paths}")
