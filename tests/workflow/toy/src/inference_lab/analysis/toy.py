"""Median and count of each toy cell."""

import statistics

from inference_lab import toy_pause
from inference_lab.config.judge import Judge
from inference_lab.records.record import Record


def summarise(record: Record, judge: Judge) -> str:
    """Text of summary.csv."""
    toy_pause.here("summary")
    toy_pause.half_written("summary", f"results/{record.experiment}/summary.csv")
    cells: dict[tuple[str, int], list[int]] = {}
    for sample in record.samples.itertuples():
        cells.setdefault((sample.path, sample.batch_size), []).append(sample.elapsed_ns)
    lines = ["path,batch_size,n,p50_ms,knee_factor,flags"]
    for (path, B), elapsed_ns in sorted(cells.items()):
        p50_ms = statistics.median(elapsed_ns) / 1e6
        lines.append(f"{path},{B},{len(elapsed_ns)},{p50_ms:.9g},{judge.knee_factor},")
    return "\n".join(lines) + "\n"
