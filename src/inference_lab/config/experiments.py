"""The whole of config.yaml: an unknown key is found before anything is planned."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from inference_lab.config.closed import Closed, Name, Some, checked, matching
from inference_lab.config.judge import Judge
from inference_lab.config.sections import Measure
from inference_lab.config.yaml_file import check_size, read_yaml
from inference_lab.errors import ConfigError

Folder = Annotated[str, matching("[a-z][a-z0-9_-]*")]


class Experiment(Closed, frozen=True):
    """One experiment."""

    refresh: Literal["auto", "manual"] = Field(
        description="auto: measured when out of date; manual: when asked"
    )
    target: Name = Field("", description="Snakemake target; left out: a manual one's own name")
    measure: Measure = Field(description="conditions and protocol: a change measures again")
    judge: Judge = Field(description="bounds and looks: a change summarises again")


class Config(Closed, frozen=True):
    """The whole file."""

    experiments: Annotated[dict[Folder, Experiment], Some] = Field(description="each by its name")


def load_config(file: Path = Path("config.yaml")) -> Config:
    """The checked config of this checkout. Raises ConfigError when it is missing, torn or not allowed."""
    return check_config(read_yaml(file), file.name)


def check_config(value: Any, file: str = "config.yaml") -> Config:
    """The config, typed. Raises ConfigError with the first fault in one line: key, value, what is allowed."""
    check_size(value, file)
    config = checked(Config.model_validate, value, file)
    for name in config.experiments:  # the calibration that a record relies on does not rely on it in turn
        place, seen = f"{file}: experiments.{name}.judge.calibration", [name]
        while relied_on := config.experiments[seen[-1]].judge.calibration:
            if relied_on not in config.experiments:
                raise ConfigError(f"{place}: names {relied_on!r}, which is no experiment; name one")
            if relied_on in seen:
                raise ConfigError(f"{place}: leads back to {relied_on!r}; a calibration relies on nothing")
            seen.append(relied_on)
    return config
