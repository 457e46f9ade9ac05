"""The same record gives the same bytes: in other processes, places and times, under other settings."""

import copy
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import TestCase

from inference_lab.figures import client_error, latency, ratios, selfcheck, throughput
from inference_lab.figures.style import font_manager, matplotlib
from tests.analysis.selfchecks import selfcheck_record, selfcheck_view
from tests.figures.views import changed, view_of
from tests.synthetic import steady, timing_record
from tests.workflow.check_client_error import calibrated

HOSTILE = """
figure.dpi: 200
font.family: serif
font.size: 30
svg.fonttype: none
text.usetex: True
axes.grid: False
lines.linewidth: 9
savefig.bbox: tight
path.simplify: False
axes.formatter.use_locale: True
"""


def digests() -> str:
    """The sha256 of each figure of one small synthetic record."""
    record = timing_record(processes=1, rounds=9, vary={"batch_size": (1, 8)}, machine=steady(0.05))
    view = changed(view_of(record, knee_factor=1.25), {("dynamic", "8"): {"flags": "aa drift"}})
    return " ".join(hashlib.sha256(f.draw(view).encode()).hexdigest() for f in (latency, throughput, ratios))


class ByteTests(TestCase):
    """What `git diff` and receipts rely on."""

    def test_every_rebuild_gives_the_same_bytes(self) -> None:
        """Whatever hash seed, second, zone, matplotlibrc, font cache, and with the system's fonts hidden."""
        here = digests()
        with TemporaryDirectory() as folder:
            empty, hidden, away = (Path(folder, name) for name in ("empty", "hidden", "away"))
            for made in (empty, hidden, away):
                made.mkdir()
            (away / "matplotlibrc").write_text(HOSTILE)
            fonts = copy.copy(font_manager.fontManager)
            serif = str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSerif.ttf"))
            fonts.ttflist = [font_manager.FontEntry(fname=serif, name="DejaVu Sans")]
            font_manager.json_dump(fonts, hidden / f"fontlist-v{fonts._version}.json")  # pyright: ignore
            children = [
                self.draw_elsewhere(
                    away, MPLCONFIGDIR=str(empty), PYTHONHASHSEED="1", TZ="Asia/Tokyo", MPLBACKEND="none"
                ),
                self.draw_elsewhere(
                    Path(folder), MPLCONFIGDIR=str(hidden), PYTHONHASHSEED="2", LC_ALL="C.UTF-8"
                ),
            ]
            for child in children:
                out, error = child.communicate(timeout=120)
                self.assertEqual(child.returncode, 0, error)
                self.assertEqual(out.strip(), here)

    def draw_elsewhere(self, cwd: Path, **variables: str) -> subprocess.Popen[str]:
        """A process that prints the digests from another place under these variables."""
        root = Path(__file__).parents[2]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")]),
            **variables,
        }
        code = "from tests.workflow.check_figure_bytes import digests; print(digests())"
        return subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


class TwiceTests(TestCase):
    """The figures of other records, drawn twice."""

    def test_selfcheck(self) -> None:
        """Drawn twice, byte for byte the same."""
        view = selfcheck_view(selfcheck_record())
        self.assertEqual(selfcheck.draw(view), selfcheck.draw(view))

    def test_client_error(self) -> None:
        """Drawn twice, byte for byte the same."""
        self.assertEqual(client_error.draw(calibrated()), client_error.draw(calibrated()))
