"""What predictions/<experiment>.yaml may say: a question, prose, and claims that a program can check.

    prediction = load_prediction(Path("predictions/m1.yaml"))
    for claim in prediction.claims: claim.id, claim.says, claim.of, claim.path, and what its class adds

A cell is `{column: value}`; `path` is the path of every cell of the claim that names none.
"""

import math
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from annotated_types import Len
from pydantic import AfterValidator, Field, PlainValidator, model_validator

from inference_lab.config import closed
from inference_lab.config.closed import Closed, Number, OptionalPositive, Positive, Some, Words, fault
from inference_lab.config.yaml_file import read_yaml

Scalar = str | int | float | bool


def _scalar(value: object) -> object:
    return value if isinstance(value, str | bool) else closed.number(value)


def _ascending(bounds: list[float]) -> list[float]:
    if bounds[0] > bounds[1]:
        raise fault(f"goes from {bounds[0]} to {bounds[1]}; write the smaller number first")
    return bounds


Cell = Annotated[dict[str, Annotated[Scalar, PlainValidator(_scalar)]], Some]
Range = Annotated[list[Number], Len(2, 2), AfterValidator(_ascending)]
Exactly = PlainValidator(lambda value: None if value is None else _scalar(value))
Id = Annotated[str, closed.matching("[A-Za-z0-9][A-Za-z0-9_.-]*")]
NO_CELL: dict[str, Scalar] = {}


class _Claim(Closed, frozen=True):
    ways: ClassVar[tuple[tuple[str, ...], ...]] = ()  # of the keys of each, exactly one is written
    id: Id = Field(description="its own in the file")
    says: Words = Field(description="the claim in words")
    of: Words = Field(description="a column of summary.csv")
    path: Words = Field("", description="the path of every cell that names none")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        for ways in self.ways:
            has = [key for key in ways if key in self.model_fields_set]
            if not has:
                raise fault(f"key {' or '.join(map(repr, ways))} is missing")
            if len(has) > 1:
                raise fault(f"has both {' and '.join(map(repr, has))}; keep one of them")
        return self


class Ratio(_Claim, frozen=True):
    """of(at) / of(over) lies inside `within`."""

    kind: Literal["ratio"]
    at: Cell = Field(description="columns of a cell and their values, for example {batch_size: 8}")
    over: Cell = Field(description="the cell it is divided by")
    within: Range = Field(description="from, to")


class LessThan(_Claim, frozen=True):
    """of(at) < of(over), by the claim rule; or of(at) < value."""

    ways = (("value", "over"),)
    kind: Literal["less_than"]
    at: Cell = Field(description="the smaller cell")
    over: Cell = Field(NO_CELL, description="the larger cell")
    value: Number = Field(math.nan, description="a number it is compared with")


class Equal(_Claim, frozen=True):
    """of(at) is `value` exactly; or of(at) / of(over) lies within 1 ± tolerance."""

    ways = (("value", "over"), ("value", "tolerance"))
    kind: Literal["equal"]
    at: Cell = Field(description="the cell")
    over: Cell = Field(NO_CELL, description="the cell it is divided by")
    tolerance: Positive = Field(0, description="relative")
    value: Annotated[Scalar | None, Exactly] = Field(None, description="null: undefined")


class Order(_Claim, frozen=True):
    """of(cell) ascends over the cells, each step by the claim rule."""

    kind: Literal["order"]
    cells: Annotated[list[Cell], Len(2)] = Field(description="cells, ascending")


class Slope(_Claim, frozen=True):
    """The power of the varied axis with which `of` grows lies inside `within`."""

    kind: Literal["slope"]
    at: Cell = Field(NO_CELL, description="the cells, without the varied axis")
    within: Range = Field(description="from, to")
    start: OptionalPositive = Field(None, alias="from", description="a value of the axis, or the first")
    end: OptionalPositive = Field(None, alias="to", description="a value of the axis, or the last")

    @model_validator(mode="after")
    def _ascends(self) -> Self:
        _ascending([self.start or 0, self.end or math.inf])
        return self


class Knee(_Claim, frozen=True):
    """The smallest value from which doubling gains less than judge.knee_factor: `within`, or not reached."""

    ways = (("not_reached", "within"),)
    kind: Literal["knee"]
    of: Words = Field("", description="a column of summary.csv that should grow; positions_per_s")
    at: Cell = Field(NO_CELL, description="the cells, without the varied axis")
    within: Range = Field(default=[math.inf, math.inf], description="from, to")
    not_reached: Literal[True] = Field(default=True, description="growth does not end in what was measured")


Claim = Annotated[Ratio | LessThan | Equal | Order | Slope | Knee, Field(discriminator="kind")]


def _own_ids(claims: list[Claim]) -> list[Claim]:
    ids = [claim.id for claim in claims]
    for at, name in enumerate(ids):
        if name in ids[:at]:
            raise fault(f"claims.{at}: id is {name!r} again; each claim has its own")
    return claims


class Prediction(Closed, frozen=True):
    """A prediction, written before measuring."""

    question: Words = Field(description="what the experiment asks")
    prediction: Words = Field(description="what is expected and why, in prose")
    claims: Annotated[list[Claim], Some, AfterValidator(_own_ids)] = Field(description="for a program")


def load_prediction(path: Path) -> Prediction:
    """A prediction file. Raises ConfigError, one line, naming file, key and what is allowed."""
    return read_prediction(read_yaml(path, "write and commit the prediction before measuring"), str(path))


def read_prediction(value: object, place: str) -> Prediction:
    """The prediction in a value. Raises ConfigError in one line."""
    return closed.checked(Prediction.model_validate, value, place)
