"""How many claims of a toy prediction there are: the toy's only verdict."""

from pathlib import Path

import yaml


def count(prediction: Path) -> int:
    """Number of claims."""
    return len(yaml.safe_load(prediction.read_text(encoding="utf-8"))["claims"])
