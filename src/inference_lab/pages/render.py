"""Render a page from its jinja template: a page's module gathers the facts, the template holds the words.

Whatever a template inserts is escaped: text of a server or a record begins no HTML, breaks no table and moves
no cursor. `Markdown` marks text that is Markdown already.
"""

import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference_lab.analysis.statistics import Estimate, short, with_interval
from inference_lab.analysis.summary_table import SummaryRow, View
from inference_lab.errors import ConfigError, printable

TEMPLATES = Path(__file__).parent / "templates"


class Markdown(str):
    """Text that a template inserts as it is."""

    __slots__ = ()


def page(name: str, view: View, **facts: object) -> str:
    """Return the page that templates/<name>.md.j2 makes of these facts and of the view with its origin."""
    files = ", ".join(f"{file} `{digest[:12]}`" for file, digest in view.source["files"].items())
    origin = f"Made from {files} by `{view.source['command']}`."
    return render(TEMPLATES / f"{name}.md.j2", view=view, record=view.record, origin=origin, **facts)


def render(template: Path, **facts: object) -> str:
    """Return the text of a template filled with these facts.

    Raises ConfigError naming template and line when it asks for something that is not there.
    """
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(template.parent),
        undefined=jinja2.StrictUndefined,
        finalize=escaped,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= _FILTERS
    try:
        return environment.get_template(template.name).render(facts)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{template} line {error.lineno}: {error.message}") from None
    except (jinja2.TemplateError, ConfigError, ValueError, TypeError, ArithmeticError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename.endswith(template.name)]
        raise ConfigError(f"{template} line {lines[-1] if lines else '?'}: {error}") from None


def escaped(value: object) -> str:
    """Return a value as text on one line that is no markup."""
    if isinstance(value, Markdown):
        return value
    text = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", " ".join(str(value).splitlines()))
    return printable(text).replace("|", "\\|")


def table(rows: Iterable[Sequence[str]], head: Sequence[str]) -> Markdown:
    """Return a Markdown table whose columns are known only when it is made."""
    lines = [head, ["---"] * len(head), *rows]
    return Markdown("\n".join(f"| {' | '.join(map(escaped, line))} |" for line in lines))


def interval(row: SummaryRow, column: str) -> str:
    """Return a column of a summary row with its interval: 1.79 [1.78, 1.80]."""
    return with_interval(row.number(column), row.interval(column))


def where(rows: Iterable[SummaryRow], **patterns: str) -> list[SummaryRow]:
    """Return the rows whose columns match these patterns (`*` for anything)."""
    return [row for row in rows if all(fnmatchcase(row[name], like) for name, like in patterns.items())]


def words(value: object) -> str:
    """Return a fact of a manifest in words."""
    match value:
        case None:
            return "not known"
        case Mapping():
            return ", ".join(f"{key} {words(each)}" for key, each in value.items())
        case list():
            return ", ".join(map(words, value))
        case bool():
            return str(value).lower()
        case _:
            return f"{value:.4g}" if isinstance(value, float) else str(value)


def _short(value: str | float) -> str:
    return short(float(value))


def _estimate(found: Estimate) -> str:
    return with_interval(found.value, found.bounds[1:])


_FILTERS: dict[str, Callable[..., object]] = {
    "short": _short,
    "estimate": _estimate,
    "interval": interval,
    "where": where,
    "words": words,
    "markdown": Markdown,
}
