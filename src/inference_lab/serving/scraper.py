"""What a server says of itself on /metrics: read at once, interpreted later, so that reading disturbs little.

Keeps the families of vLLM alone, which the reference server speaks too. Derives nothing.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic_ns

from prometheus_client.parser import text_string_to_metric_families

from inference_lab.serving.server_process import get, root

PREFIX = "vllm:"
_SAME = ("engine", "model_name")  # labels that one engine with one model has no use for


@dataclass
class Scraper:
    """Reads /metrics when asked, and every `interval_s` in a thread of its own while `with` lasts."""

    base_url: str
    interval_s: float
    samples: list[tuple[int, bytes | None]] = field(default_factory=list[tuple[int, bytes | None]])

    def scrape(self) -> tuple[int, bytes | None]:
        """(monotonic ns before asking, the page); None for the page of a server that does not answer."""
        at_ns = monotonic_ns()
        return at_ns, get(f"{root(self.base_url)}/metrics")

    def __enter__(self) -> "Scraper":
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self.interval_s):
            self.samples.append(self.scrape())


def metrics_of(page: bytes | None, *, gauges: bool = False) -> dict[str, float] | None:
    """`{name{labels}: value}` of vLLM's families on a page, or of its gauges alone; None without a page.

    Of a histogram its sum and count; its buckets are coarser than what is asked of them here.
    """
    return None if page is None else dict(_values(page.decode(), gauges=gauges))


def _values(page: str, *, gauges: bool) -> Iterator[tuple[str, float]]:
    for family in text_string_to_metric_families(page):
        if not family.name.startswith(PREFIX) or family.name.endswith("_info"):
            continue
        if gauges and family.type != "gauge":
            continue
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name not in _SAME}
            if not sample.name.endswith(("_bucket", "_created")):
                words = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
                yield sample.name.removeprefix(PREFIX) + (f"{{{words}}}" if words else ""), sample.value
