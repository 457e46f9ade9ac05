"""The value of a cell, or the ratio of two cells, with every interval that a claim about it must hold in.

Two cells timed in the same rounds are compared round by round; other cells by the columns of the summary and
their bounds; columns without bounds (counts, observations) exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inference_lab.analysis.claim_rule import ClaimRule, apart
from inference_lab.analysis.rounds import METRICS, CellKey, rounds_of
from inference_lab.analysis.statistics import Estimate, Interval
from inference_lab.analysis.summary_table import SummaryRow, View, bound_names, in_words, pick
from inference_lab.errors import ConfigError, RecordError
from inference_lab.records.record import varied

Cell = Mapping[str, object]


class NoEvidence(Exception):
    """A claim cannot be judged; the text says why."""


@dataclass(frozen=True)
class Quantity:
    """A number of the record, with every interval a conclusion about it has to hold in."""

    estimate: Estimate
    intervals: Sequence[Interval]
    rows: str


class Evidence:
    """A record and its summary, asked about cells by what their columns say."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.place = f"prediction of {view.record.experiment}"
        self.rule = ClaimRule(rounds_of(view.record)) if view.record.samples is not None else None
        self.axis, self.values = varied(view.record.manifest)

    def row(self, of: str, cell: Cell) -> SummaryRow:
        """The row of a cell, fit to be judged by its column `of`.

        Raises NoEvidence when it was not measured or is flagged, ConfigError for an unknown column.
        """
        columns = self.view.summary[0]
        if of not in columns:
            raise ConfigError(f"{self.place}: no column {of!r}; the summary has {', '.join(columns)}")
        row = pick(self.view.summary, cell, self.place)
        if row is None:
            raise NoEvidence(f"no cell {in_words(cell)} was measured")
        if codes := row.get("flags"):
            raise NoEvidence(f"{in_words(cell)} is flagged {codes}: {row.get('advice')}")
        return row

    def is_exact(self, of: str) -> bool:
        """Whether the summary gives no bounds for a column: it was counted or observed, not estimated."""
        return bound_names(of)[0] not in self.view.summary[0]

    def number(self, row: SummaryRow, of: str) -> float | None:
        """A column of a row as a number, None when empty. Raises ConfigError where it holds words."""
        try:
            return row.number(of)
        except RecordError:
            way_out = "name a column of numbers, or claim that it is equal to those words"
            raise ConfigError(f"{self.place}: {of} is {row[of]!r}, no number; {way_out}") from None

    def value(self, of: str, cell: Cell) -> Quantity:
        """What a column says of a cell; an exact value is its own interval. Raises as `row`."""
        row = self.row(of, cell)
        value = self.number(row, of)
        if value is None:
            raise NoEvidence(f"{of} of {in_words(cell)} is undefined")
        lo, hi = (value, value) if self.is_exact(of) else row.interval(of)
        found = Estimate(value, lo, hi, int(row.get("n") or 1))
        return Quantity(found, [(lo, hi)], f"{of} at {in_words(cell)}")

    def ratio(self, of: str, at: Cell, over: Cell) -> Quantity:
        """`of` at one cell over `of` at another. Raises as `row`."""
        rows = f"{of} at {in_words(at)} over {in_words(over)}"
        if self.rule and (pair := self._paired(of, at, over)):
            found = self.rule.compare(of, *pair)
            return Quantity(found.ratio, found.intervals, f"{rows}, round by round")
        a, b = self.value(of, at).estimate, self.value(of, over).estimate
        if b.value <= 0 or (b.lo is not None and b.lo <= 0):
            raise NoEvidence(f"{of} of {in_words(over)} is {b.value:.9g}: there is no ratio to it")
        lo = None if a.lo is None or b.hi is None else a.lo / b.hi
        hi = None if a.hi is None or b.lo is None else a.hi / b.lo
        return Quantity(Estimate(a.value / b.value, lo, hi, min(a.n, b.n)), [(lo, hi)], rows)

    def less(self, of: str, at: Cell, over: Cell) -> tuple[bool | None, Quantity]:
        """Whether `of` is less at one cell than at another (None: no claim), and their ratio."""
        ratio = self.ratio(of, at, over)
        if self.rule and (pair := self._paired(of, at, over)):
            return (ratio.estimate.value < 1 if self.rule.claims(of, *pair) else None), ratio
        return apart(ratio.intervals, exact=self.is_exact(of)), ratio

    def _paired(self, of: str, at: Cell, over: Cell) -> tuple[CellKey, CellKey] | None:
        """The keys of two cells where the same rounds timed both, else None. Raises as `row`."""
        if self.rule is None or of not in METRICS:
            return None
        a, b = ((row["path"], int(row[self.axis])) for row in (self.row(of, at), self.row(of, over)))
        return (a, b) if a != b and self.rule.rounds.paired(a[1], b[1]) else None
