"""An experiment of your own: the section of another one, an axis of your choice, and a blank prediction."""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from inference_lab.config.experiments import check_config, load_config
from inference_lab.errors import ConfigError
from inference_lab.records import files

CONFIG = Path("config.yaml")
_NEXT = re.compile(r"^  [^ \n]", re.MULTILINE)  # the next section, or the comment above it
PREDICTION = """\
# Write it before you measure, and commit it alone. It is never edited to fit. Kinds of claims, with examples:
# predictions/m1.yaml. What a claim may name: the columns of results/{like}/summary.csv.
question:
prediction: |

claims:
#  - id: b1
#    says: "a sentence with a number that the record can support or refute"
#    kind: ratio
#    of: p50_ms
#    at: {{path: preallocated, {axis}: {last}}}
#    over: {{path: dynamic, {axis}: {last}}}
#    within: [0.5, 1]
"""


def new(name: str, like: str, vary: str) -> str:
    """Return what to do next, once config.yaml has a section `name` like that of `like`.

    `vary` is "axis=value,value", or empty to keep what `like` varies. Raises ConfigError in one line, and
    changes nothing, when the section would not be allowed or something of that name is there.
    """
    config = load_config()
    prediction = Path("predictions", f"{name}.yaml")
    if name in config.experiments or prediction.exists():
        raise ConfigError(f"{name} is there already, in {CONFIG} or as {prediction}; choose another name")
    if like not in config.experiments:
        raise ConfigError(f"{CONFIG}: no experiment {like!r}; one of: {', '.join(config.experiments)}")
    text = CONFIG.read_text(encoding="utf-8")
    start = text.index(f"\n  {like}:") + 1
    following = _NEXT.search(text, text.index("\n", start))
    section = text[start : following.start() if following else len(text)].rstrip()
    section = re.sub(r"^  \S+:.*", f"  {name}:{' ' * 24}# like {like}", section, count=1)
    section = re.sub(r"\n      (article|report): .*", "", section)
    axis, _, listed = vary.partition("=")
    measure = config.experiments[like].measure
    if vary:
        fixed = {measure.axis: measure.values[0], **measure.fixed.given()}
        fixed.pop(axis, None)
        varied = {axis: [_value(part.strip()) for part in listed.split(",")]}
        section = _with(_with(section, like, "vary", varied), like, "fixed", fixed)
    if (axis or measure.axis) != "batch_size":  # a knee is where a larger batch stops paying
        section = re.sub(r"\n +(knee_factor: .*|\S+: pages\.knee)", "", section)
    added = f"{text.rstrip()}\n\n{section}\n"
    made = check_config(yaml.safe_load(added)).experiments[name].measure
    files.write_file(CONFIG, added)
    stub = PREDICTION.format(like=like, axis=made.axis, last=made.values[-1])
    files.write_file(prediction, stub)
    return (
        f"{CONFIG}: section {name}, at the end; it varies {made.axis}: {', '.join(map(str, made.values))}\n"
        f"{prediction}: blank\n"
        f"1. write the prediction: git add {prediction} {CONFIG} && git commit -m 'Prediction of {name}'\n"
        f"2. see what would run: uv run snakemake -n results/{name}/analysis.md\n"
        f"3. measure: uv run snakemake --cores 1 results/{name}/analysis.md"
    )


def _with(section: str, like: str, key: str, value: Mapping[str, object]) -> str:
    """The section with another value of a key of `measure:` that is written in one line."""
    line = re.compile(rf"^      {key}: \{{.*\}}", re.MULTILINE)
    if not line.search(section):
        raise ConfigError(f"{CONFIG}: {like} has no line `{key}: {{...}}` to copy; name another --like")
    flow = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000).strip()
    return line.sub(f"      {key}: {flow}", section, count=1)


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
