"""Tokens of keys and values that fit one GiB, one row a published model, one mark a dtype."""

from inference_lab.analysis.summary_table import View
from inference_lab.figures.style import FAINT, MARKS, SMALL, WIDTH, Figure, Line, drawing, new_figure

ROW, NAMES = 17, 196  # points: height of a model's row, width of the names beside them


@drawing
def draw(view: View) -> Figure:
    """Draw tokens_per_gib, models from fewest to most tokens; dtypes of the same size share a mark."""
    tokens: dict[str, dict[str, int]] = {}  # by model, by dtype
    shape: dict[str, str] = {}
    for row in view.summary:
        tokens.setdefault(row["model"], {})[row["dtype"]] = int(row["tokens_per_gib"])
        layers, heads, width = row["num_layers"], row["num_kv_heads"], row["head_dim"]
        shape[row["model"]] = f"{layers} · {heads} · {width}"
    dtypes = list(next(iter(tokens.values())))
    sizes: dict[tuple[int, ...], list[str]] = {}
    for dtype in dtypes:
        sizes.setdefault(tuple(found[dtype] for found in tokens.values()), []).append(dtype)
    legend = dict(zip((", ".join(same) for same in sizes.values()), MARKS, strict=False))

    models = sorted(tokens, key=lambda model: (tokens[model][dtypes[0]], model))
    head = "Beside each model: layers L · key/value heads G · head width D. A token takes 2·L·G·D elements."
    foot = Line("Each model's config file, repository and commit are in summary.csv.", color=FAINT)
    title = "tokens of keys and values in one GiB"
    figure, (panel,) = new_figure(view, legend, [ROW * len(models) + 8], title, head, foot)
    place = panel.get_position()
    left = NAMES / WIDTH
    panel.set_position((left, place.y0, place.x1 - left, place.height))
    for mark, same in zip(legend.values(), sizes.values(), strict=True):
        values = [tokens[model][same[0]] for model in models]
        panel.plot(values, range(len(models)), mark.marker, color=mark.color, zorder=3)
    panel.set_xscale("log", base=2)
    every = [count for counts in tokens.values() for count in counts.values()]
    ticks = [2**n for n in range(min(every).bit_length() - 1, max(every).bit_length() + 1)]
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks], size=SMALL)
    panel.set_xticks([], minor=True)
    panel.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)
    panel.set_xlabel("tokens, log scale")
    panel.set_yticks(range(len(models)), [f"{model}   {shape[model]}" for model in models], size=SMALL)
    panel.set_ylim(-0.6, len(models) - 0.4)
    panel.grid(axis="x")
    return figure
