"""Closed models: what a person wrote is checked once, against types, and refused in one line.

A field of a `Closed` model is a key of a YAML file: its type says what may be written, its description what
it means. `2.0` is no whole number, `true` is none either, and text is neither.
"""

import difflib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Self, TypeVar

from annotated_types import Ge, Gt, Len
from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from inference_lab.errors import ConfigError

T = TypeVar("T")


def fault(words: str) -> PydanticCustomError:
    """A refusal in our own words, without the file and the key: pydantic knows the key."""
    return PydanticCustomError("fault", "{words}", {"words": words})


def number(value: object) -> int | float:
    """The number as it was written: 1 stays whole. NaN would pass every bound, 10**400 is no float."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise fault(f"is {value!r}, must be a number{_if_a_number(value)}")
    return value


def _once(values: list[T]) -> list[T]:
    if any(value in values[:at] for at, value in enumerate(values)):
        raise fault(f"is {values!r}, must name each value once")
    return values


def matching(pattern: str) -> AfterValidator:
    """A text of this form, whole."""
    return _text(lambda text: re.fullmatch(pattern, text), lambda _: f"must be of the form {pattern}")


def one_of(*known: str) -> AfterValidator:
    """A text that is one of these."""
    return _text(lambda text: text in known, lambda text: _choice(text, known))


def _text(allowed: Callable[[str], object], rule: Callable[[str], str]) -> AfterValidator:
    def check(text: str) -> str:
        if not allowed(text):
            raise fault(f"is {text!r}, {rule(text)}")
        return text

    return AfterValidator(check)


Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Number = Annotated[float, PlainValidator(number)]
NotNegative = Annotated[float, PlainValidator(number), Ge(0)]
Positive = Annotated[float, PlainValidator(number), Gt(0)]
OptionalPositive = Annotated[float | None, PlainValidator(number), Gt(0)]  # left out, not null
Words = Annotated[str, Len(1)]
Name = Annotated[str, matching("[a-z][a-z0-9_]*")]
Some = Len(1)  # at least one entry
Several = Annotated[list[T], Some, AfterValidator(_once)]  # no value twice


class Closed(BaseModel, frozen=True):
    """A mapping with known keys alone. `given()` is what was written: defaults are not part of it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, value: Any) -> Any:
        """Refuse a key that is not known, with the nearest that is, or one that is missing."""
        known = {field.alias or name: field for name, field in cls.model_fields.items()}
        needed = [key for key, field in known.items() if field.is_required()]
        if isinstance(value, Mapping):
            for key in value:
                if key not in known:
                    near = _nearest(str(key), known)
                    raise fault(f"unknown key {key!r}{near}; allowed are {', '.join(known)}")
            for key in needed:
                if key not in value:
                    raise fault(f"key {key!r} is missing; needed are {', '.join(needed)}")
        return value

    def given(self) -> dict[str, Any]:
        """The keys that were written, with their values, as JSON has them."""
        return self.model_dump(exclude_unset=True, by_alias=True)

    def having(self, key: str, value: object) -> Self:
        """The same with this key set to this value, unchecked."""
        return self.model_copy(update={key: value})


def checked(read: Callable[[Any], T], value: object, place: str) -> T:
    """Return what `read` makes of a value. Raises ConfigError with the first fault, after `place`."""
    try:
        return read(value)
    except ValidationError as error:
        where, words = min((_place(each["loc"]), _words(each)) for each in error.errors(include_url=False))
        raise ConfigError(f"{place}: {where}: {words}") from None
    except RecursionError:
        raise ConfigError(f"{place}: holds itself; write out its aliases") from None


def _place(loc: tuple[int | str, ...]) -> str:
    """The keys that lead to a fault; of the names that pydantic adds, `[key]` and a kind's tag, none."""
    keys = [str(key) for at, key in enumerate(loc) if key != "[key]" and not _is_tag(loc[:at], key)]
    return ".".join(keys) or "the top level"


def _is_tag(before: tuple[int | str, ...], key: int | str) -> bool:
    """Whether this is a kind's name that pydantic puts behind the key of a mapping that says its kind."""
    return before[-1:] == ("measure",) or (before[:1] == ("claims",) and len(before) == 2 and key != "kind")


_RULES = {
    "fault": "{words}",
    "greater_than_equal": "is {value!r}, must be at least {ge}",
    "greater_than": "is {value!r}, must be more than {gt}",
    "union_tag_not_found": "key {discriminator} is missing",
    "missing": "is missing",
    "extra_forbidden": "is no key that may be there",
    "string_pattern_mismatch": "is {value!r}, must be of the form {pattern}",
}
_KINDS = {
    "int_type": "a whole number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping"),
}


def _words(error: ErrorDetails) -> str:
    value, ctx, kind = error["input"], error.get("ctx", {}), error["type"]
    if rule := _RULES.get(kind):
        return rule.format(value=value, **ctx)
    if kind == "literal_error":
        return f"is {value!r}, {_choice(value, _quoted(ctx['expected']))}"
    if kind == "union_tag_invalid":
        return (
            f"{ctx['discriminator']} is {ctx['tag']!r}, {_choice(ctx['tag'], _quoted(ctx['expected_tags']))}"
        )
    if kind in ("too_short", "too_long", "string_too_short"):
        if not value:
            return "is empty; it needs one entry"
        bound = f"at least {ctx['min_length']}" if "min_length" in ctx else f"at most {ctx['max_length']}"
        return f"has {len(value)} entries, must have {bound}"
    return f"is {value!r}, must be {_KINDS.get(kind, error['msg'])}{_if_a_number(value)}"


def _quoted(text: str) -> list[str]:
    """The values that pydantic lists; True, which it does not quote."""
    return re.findall("'([^']*)'", text) or [text]


def _choice(value: object, known: Sequence[str]) -> str:
    return f"must be one of {', '.join(known)}{_nearest(str(value), known)}"


def _nearest(text: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(text, list(known), 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _if_a_number(value: object) -> str:
    """How to write a number that YAML or --config took for text, such as 1e3."""
    try:
        return (
            f" (it was taken for text: write {float(value)!r} without quotes)"
            if isinstance(value, str)
            else ""
        )
    except ValueError:
        return ""
