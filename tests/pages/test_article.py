"""An article's numbers come from summary and verdicts, or it is not written."""

import tempfile
import unittest
from pathlib import Path

from inference_lab.errors import ConfigError
from inference_lab.pages.analysis import article
from tests.analysis.views import view_of
from tests.synthetic import timing_record

VIEW = view_of(timing_record(rounds=6))
PAYS = {"id": "pays", "verdict": "Supported", "value": "3.14159"}


class Articles(unittest.TestCase):
    """`article`."""

    def render(self, template: str) -> str:
        """The article of a template."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "m1.md.j2")
            file.write_text(template, encoding="utf-8")
            return article(file, VIEW, [PAYS])

    def test_numbers_are_looked_up(self) -> None:
        """Cells, intervals, verdicts and the machine stand in the text, rounded as asked."""
        row = next(r for r in VIEW.summary if (r["path"], r["batch_size"]) == ("preallocated", "8"))
        rate = float(row["positions_per_s"])
        self.assertEqual(
            self.render(
                '{{ cell(path="preallocated", batch_size=8).positions_per_s | short }} positions/s on'
                ' {{ manifest.environment.cpu_model }}: {{ verdict("pays").verdict }},'
                ' {{ verdict("pays").value | float | round(1) }} times\n'
            ),
            f"{rate:,.0f} positions/s on Example CPU @ 2.00GHz: Supported, 3.1 times\n",
        )
        self.assertRegex(
            self.render('{{ cell(path="dynamic", batch_size=1) | interval("p95_ms") }}'),
            r"^2\.\d+ \[2\.\d+, open\]$",
        )
        self.assertEqual(
            self.render("{% for row in rows %}{{ row.batch_size }} {% endfor %}"), "1 2 4 8 1 2 4 8 "
        )

    def test_what_is_not_there_is_an_error(self) -> None:
        """Unknown cells, columns, claims and names, empty numbers and bad syntax name template and line."""
        for template, words in (
            ('{{ cell(path="dynamic", batch_size=3).n }}', "no cell path=dynamic batch_size=3"),
            ('{{ cell(path="dynamic").n }}', "fits 4 rows"),
            ('{{ cell(path="dynamic", batch_size=1).p99_ms }}', "no column 'p99_ms'"),
            ('{{ cell(path="dynamic", batch_size=1) | interval("p99_ms") }}', "no column 'p99_ms'"),
            ('{{ verdict("paid").value }}', "no claim 'paid'"),
            ("{{ sell }}", "'sell' is undefined"),
            ("{{ manifest.colour }}", "no attribute 'colour'"),
            ('{{ cell(path="dynamic", batch_size=1).ratio | short }}', "could not convert"),
            ("{{ cell( }}", "unexpected"),
            ("{{ cell.__globals__ }}", "access to attribute '__globals__'"),
            ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
            ("{{ rows.clear() }}", "attribute 'clear' of 'list' object is unsafe"),
            ("{{ 1 / 0 }}", "division by zero"),
        ):
            with self.subTest(template), self.assertRaises(ConfigError) as refused:
                self.render(f"one\ntwo\n{template}\n")
            message = str(refused.exception)
            self.assertIn(words, message)
            self.assertIn("m1.md.j2 line 3: ", message)
            self.assertNotIn("\n", message)
