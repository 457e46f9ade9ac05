"""Tokens of keys and values that fit one GiB, one row a published model, one mark a dtype."""

from collections.abc import Mapping

from inference_lab.analysis.summary_table import View
from inference_lab.errors import RecordError
from inference_lab.figures.style import FAINT, MARKS, SMALL, WIDTH, Line, page, styled, svg

ROW, NAMES = 17, 196  # points: height of a model's row, width of the names beside them


@styled()
def draw(view: View) -> str:
    """SVG of tokens_per_gib, models from fewest to most tokens; dtypes of the same size share a mark.

    Raises RecordError when a model lacks a dtype that another has.
    """
    tokens: dict[str, dict[str, int]] = {}  # by model, by dtype
    shape: dict[str, str] = {}
    for row in view.summary:
        tokens.setdefault(row["model"], {})[row["dtype"]] = int(row["tokens_per_gib"])
        layers, heads, width = row["num_layers"], row["num_kv_heads"], row["head_dim"]
        shape[row["model"]] = f"{layers} · {heads} · {width}"
    dtypes = list(next(iter(tokens.values())))
    if odd := next((name for name, found in tokens.items() if list(found) != dtypes), None):
        raise RecordError(f"model {odd} has dtypes {', '.join(tokens[odd])}, the first {', '.join(dtypes)}")
    sizes: dict[tuple[int, ...], list[str]] = {}
    for dtype in dtypes:
        sizes.setdefault(tuple(found[dtype] for found in tokens.values()), []).append(dtype)
    legend = dict(zip((", ".join(same) for same in sizes.values()), MARKS, strict=False))

    models = sorted(tokens, key=lambda model: (tokens[model][dtypes[0]], model))
    head = "Beside each model: layers L · key/value heads G · head width D. A token takes 2·L·G·D elements."
    foot = Line("Each model's config file, repository and commit stand in summary.csv.", color=FAINT)
    title = "tokens of keys and values in one GiB"
    figure, (panel,) = page(view, legend, [ROW * len(models) + 8], title, head, foot)
    place = panel.get_position()
    left = NAMES / WIDTH
    panel.set_position((left, place.y0, place.x1 - left, place.height))
    for mark, same in zip(legend.values(), sizes.values(), strict=True):
        values = [tokens[model][same[0]] for model in models]
        panel.plot(
            values,
            range(len(models)),
            mark.marker,
            color=mark.color,
            gid=f"tokens-{'-'.join(same)}",
            zorder=3,
        )
    panel.set_xscale("log", base=2)
    ticks = _powers_of_two(
        min(min(row.values()) for row in tokens.values()), max(map(_most, tokens.values()))
    )
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks], size=SMALL)
    panel.set_xticks([], minor=True)
    panel.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)
    panel.set_xlabel("tokens, log scale")
    panel.set_yticks(range(len(models)), [f"{model}   {shape[model]}" for model in models], size=SMALL)
    panel.set_ylim(-0.6, len(models) - 0.4)
    panel.grid(axis="x")
    return svg(figure, view)


def _most(by_dtype: Mapping[str, int]) -> int:
    return max(by_dtype.values())


def _powers_of_two(least: int, most: int) -> list[int]:
    """The powers of two around these counts."""
    return [2**n for n in range(least.bit_length() - 1, most.bit_length() + 1)]
