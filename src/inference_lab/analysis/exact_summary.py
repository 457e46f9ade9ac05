"""summary.csv of a record that timed nothing: its rows as they are, because there is nothing to estimate.

Serves the kinds `observation` and `capacity`, whose every number is exact.
"""

import csv
import io
from collections.abc import Mapping

from inference_lab.config.judge import Judge
from inference_lab.errors import RecordError
from inference_lab.records.record import Record


def summarise(record: Record, judge: Judge) -> str:
    """The text of summary.csv. Raises RecordError when the record has no rows or one that stands twice."""
    if not record.rows:
        raise RecordError(f"{record.experiment}: the record has no row; measure it again")
    text = io.StringIO()
    table = csv.DictWriter(text, list(record.rows[0]), lineterminator="\n")
    table.writeheader()
    seen: list[Mapping[str, str]] = []
    for row in record.rows:
        if row in seen:
            raise RecordError(f"{record.experiment}: a row stands twice: {','.join(row.values())}")
        seen.append(row)
    table.writerows(seen)
    return text.getvalue()
