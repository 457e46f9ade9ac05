"""summary.csv of a record that timed nothing: its rows as they are, because every number is exact."""

from inference_lab.config.judge import Judge
from inference_lab.errors import RecordError
from inference_lab.records.record import Record, csv_text


def summarise(record: Record, judge: Judge) -> str:
    """The text of summary.csv. Raises RecordError when the record has no rows."""
    if not record.rows:
        raise RecordError(f"{record.experiment}: the record has no row; measure it again")
    return csv_text(list(record.rows[0]), record.rows)
