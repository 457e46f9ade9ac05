"""A prediction as it is written before measuring: a question, prose, and claims that a program can check.

Answers: may this file stand beside a measurement? Does not know what was measured.
"""

import math
from pathlib import Path
from typing import Any

from inference_lab.errors import ConfigError
from inference_lab.records.config import check_schema, read_schema, read_yaml

SCHEMA_FILE = Path("workflow/schemas/prediction.schema.yaml")
_EXCLUSIVE = (("value", "over"), ("value", "tolerance"), ("not_reached", "within"))


def load_prediction(path: Path) -> dict[str, Any]:
    """The keys question, prediction and claims of a prediction file.

    Raises ConfigError, one line, naming file, key and what is allowed.
    """
    prediction = read_yaml(path, "write and commit the prediction before measuring")
    check_schema(prediction, read_schema(SCHEMA_FILE), str(path))
    seen: set[str] = set()
    for number, claim in enumerate(prediction["claims"]):
        place = f"{path}: claims.{number}"
        if claim["id"] in seen:
            raise ConfigError(f"{place}.id: is {claim['id']!r} again; each claim has an id of its own")
        seen.add(claim["id"])
        for one, other in _EXCLUSIVE:
            if one in claim and other in claim:
                raise ConfigError(f"{place}: has both {one!r} and {other!r}; keep one of them")
        for low, high in (claim.get("within", (0, 0)), (claim.get("from", 0), claim.get("to", math.inf))):
            if low > high:
                raise ConfigError(f"{place}: goes from {low} to {high}; write the smaller number first")
    return prediction
