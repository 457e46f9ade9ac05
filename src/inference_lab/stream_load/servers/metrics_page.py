"""A server's page /metrics: read during a load, parsed afterwards, so that reading disturbs little.

Keeps the families of vLLM, whose names the reference server uses too.
"""

import math
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cache
from time import monotonic_ns

from prometheus_client.parser import text_string_to_metric_families

from inference_lab.stream_load.servers.process import get, root

_PREFIX = "vllm:"
_SAME = ("engine", "model_name")  # labels over which values are put together


Page = tuple[int, bytes | None]  # monotonic ns before asking; no bytes when the server does not answer


def scrape(base_url: str) -> Page:
    """Return the page as it is now."""
    return monotonic_ns(), get(f"{root(base_url)}/metrics")


@contextmanager
def scraping(base_url: str, interval_s: float) -> Generator[list[Page]]:
    """The pages that a thread of its own reads, one every `interval_s`, while the block lasts."""
    stop, pages = threading.Event(), list[Page]()

    def run() -> None:
        while not stop.wait(interval_s):
            pages.append(scrape(base_url))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield pages
    finally:
        stop.set()
        thread.join()


def metrics_of(page: bytes | None, *, gauges: bool = False) -> dict[str, float] | None:
    """`{name{labels}: value}` of vLLM's families on a page, or of its gauges alone; None without a page.

    Engines behind one page are one server: their values are added. Of a share (`_perc`, the used part of each
    engine's KV cache) the largest counts, because the fullest cache is the one that makes requests wait.
    A histogram gives its sum and count; its buckets are too coarse for what is computed here. A value that is
    not a number is left out. A page that cannot be read (HTML, JSON, one that is cut off) counts as none;
    this is printed once.
    """
    if page is None:
        return None
    values: dict[str, float] = {}
    try:
        text = page.decode()
        if not text.endswith("\n"):
            raise ValueError("its last line has no end")
        for name, value in _values(text, gauges=gauges):
            before = values.get(name, 0.0)
            values[name] = max(before, value) if name.partition("{")[0].endswith("_perc") else before + value
    except (ValueError, OverflowError):  # a time stamp may be beyond every float
        _say_unreadable()
        return None
    return values


@cache
def _say_unreadable() -> None:
    print("a page /metrics cannot be read: it counts as no page, and so will others", file=sys.stderr)


def _values(page: str, *, gauges: bool) -> Iterator[tuple[str, float]]:
    for family in text_string_to_metric_families(page):
        is_other = not family.name.startswith(_PREFIX) or family.name.endswith("_info")
        if is_other or (gauges and family.type != "gauge"):
            continue
        for sample in family.samples:
            if not sample.name.endswith(("_bucket", "_created")) and math.isfinite(sample.value):
                labels = sorted(label for label in sample.labels.items() if label[0] not in _SAME)
                words = ",".join(f'{name}="{value}"' for name, value in labels)
                yield sample.name.removeprefix(_PREFIX) + (f"{{{words}}}" if words else ""), sample.value
