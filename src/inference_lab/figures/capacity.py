"""Tokens of keys and values that fit one GiB, one row a published model, one mark a dtype."""

from inference_lab.analysis.summary_table import View
from inference_lab.figures.style import FAINT, MARKS, SMALL, WIDTH, Figure, Line, drawing, new_figure

ROW, NAMES = 17, 196  # points: height of a model's row, width of the names beside them


@drawing
def draw(view: View) -> Figure:
    """Draw tokens_per_gib, models from fewest to most tokens; dtypes of the same size share a mark."""
    shape = {
        row["model"]: f"{row['model']}   {row['num_layers']} · {row['num_kv_heads']} · {row['head_dim']}"
        for row in view.summary
    }
    tokens = {(row["model"], row["dtype"]): int(row["tokens_per_gib"]) for row in view.summary}
    first = view.summary[0]["dtype"]
    models = sorted(shape, key=lambda model: (tokens[model, first], model))
    sizes: dict[tuple[int, ...], list[str]] = {}  # the dtypes that have these counts
    for dtype in dict.fromkeys(row["dtype"] for row in view.summary):
        sizes.setdefault(tuple(tokens[model, dtype] for model in models), []).append(dtype)
    legend = dict(zip((", ".join(same) for same in sizes.values()), MARKS, strict=False))
    head = "Beside each model: layers L · key/value heads G · head width D. A token takes 2·L·G·D elements."
    foot = Line("Each model's config file, repository and commit are in summary.csv.", color=FAINT)
    title = "tokens of keys and values in one GiB"
    figure, (panel,) = new_figure(view, legend, [ROW * len(models) + 8], title, head, foot)
    place = panel.get_position()
    left = NAMES / WIDTH
    panel.set_position((left, place.y0, place.x1 - left, place.height))
    for mark, values in zip(legend.values(), sizes, strict=True):
        panel.plot(values, range(len(models)), mark.marker, color=mark.color, zorder=3)
    panel.set_xscale("log", base=2)
    least, most = (end(tokens.values()).bit_length() for end in (min, max))
    ticks = [2**n for n in range(least - 1, most + 1)]
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks], size=SMALL)
    panel.set_xticks([], minor=True)
    panel.set_xlim(ticks[0] / 1.3, ticks[-1] * 1.3)
    panel.set_xlabel("tokens, log scale")
    panel.set_yticks(range(len(models)), [shape[model] for model in models], size=SMALL)
    panel.set_ylim(-0.6, len(models) - 0.4)
    panel.grid(axis="x")
    return figure
