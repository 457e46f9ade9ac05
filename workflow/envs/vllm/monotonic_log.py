"""A log record's time on CLOCK_MONOTONIC, which every process of a machine shares with the load client."""

import logging
import time


class MonotonicFormatter(logging.Formatter):
    """Adds `monotonic_ns` to a record: when it was logged."""

    def format(self, record: logging.LogRecord) -> str:
        """The record, which may begin with that time."""
        record.monotonic_ns = time.monotonic_ns()
        return super().format(record)
