"""The demo's report: hostile text stays text, numbers are those of the runs, nothing is loaded from outside."""

from __future__ import annotations

import dataclasses
import io
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from rich.console import Console

from pluralis.errors import DataError
from pluralis.report import write_report
from pluralis.results import DemoResults, GalleryItem, MethodRuns, RunCurve, headline, summary_table

VOID = {"meta", "img", "br"}
HOSTILE = "<script>alert('x')</script>\" onload=\"1 & $\\frac{$ [red]_"


class Page(HTMLParser):
    """Tags must close in order; keeps what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.cells: list[list[str]] = []
        self.spans: list[tuple[str, str]] = []
        self.words = ""
        self._span = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")
        if tag == "span":
            self._span = dict(attrs).get("class") or ""
            self.spans.append((self._span, ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data
        if {"td", "th"} & set(self.open):
            self.cells[-1][-1] += data
        if "span" in self.open:
            self.spans[-1] = (self.spans[-1][0], self.spans[-1][1] + data)


def run(seed: int, *values: float, seconds: float = 3.0) -> RunCurve:
    epochs = [{"epoch": float(e + 1), "loss": 1.0, "mAP": values[0] - 5 + e} for e in range(4)]
    return RunCurve(seed, epochs, dict(zip(("mAP", "CF1", "OF1"), values, strict=True)), seconds)


def results() -> DemoResults:
    image = (torch.arange(3 * 48 * 48) % 251).to(torch.uint8).reshape(3, 48, 48)
    return DemoResults(
        title="Digits",
        methods=[
            MethodRuns("an", "assume negative", [run(0, 75.13, 40.0, 41.0), run(1, 76.41, 42.5, 39.0)]),
            MethodRuns("em", "entropy", [run(0, 79.3, 60.2, 61.7), run(1, 80.9, 63.0, 62.2, seconds=5.0)]),
            MethodRuns("all", "all labels", [run(0, 86.0, 80.0, 81.0), run(1, 87.0, 79.0, 82.0)]),
        ],
        upper="all",
        gallery=[GalleryItem(image, "3", ["3", "7", "8"], {"an": ["3"], "em": ["3", "7", "9"]})],
        selection_rule="the last epoch",
        command="pluralis demo",
        notes=["two cores"],
        device="cpu",
        versions={"torch": "2"},
        threshold_rule="best F1 on the validation images",
    )


def written(folder: Path, what: DemoResults) -> tuple[str, Page]:
    text = write_report(folder / "deep" / "report.html", what).read_text(encoding="utf-8")
    return text, Page(text)


def test_page_is_balanced_and_leaves_no_draft(tmp_path: Path) -> None:
    _, page = written(tmp_path, results())
    assert page.open == []
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["report.html"]


def test_page_is_self_contained(tmp_path: Path) -> None:
    text, page = written(tmp_path, results())
    assert not re.search(r"https?://|@import|url\(", text)
    sources = [value or "" for _, name, value in page.attributes if name in ("src", "href", "srcset", "action")]
    assert len(sources) == 2  # the chart and one test image
    assert all(value.startswith("data:image/png;base64,") for value in sources)
    assert "script" not in page.tags
    assert "link" not in page.tags
    policy = next(value for tag, name, value in page.attributes if tag == "meta" and name == "content")
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def test_hostile_text_is_escaped_everywhere(tmp_path: Path) -> None:
    plain = results()
    item = dataclasses.replace(
        plain.gallery[0], given=HOSTILE, truth=[HOSTILE], predictions={HOSTILE: [HOSTILE, HOSTILE + "2"]}
    )
    hostile = DemoResults(
        title=HOSTILE,
        methods=[dataclasses.replace(plain.methods[0], name=HOSTILE, title=HOSTILE), *plain.methods[1:]],
        upper="all",
        gallery=[item, dataclasses.replace(item, predictions={HOSTILE: []})],
        selection_rule=HOSTILE,
        command=HOSTILE,
        notes=[HOSTILE],
        device=HOSTILE,
        versions={HOSTILE: HOSTILE},
        threshold_rule=HOSTILE,
    )
    text, page = written(tmp_path, hostile)
    assert page.open == []
    assert "script" not in page.tags
    assert "<script" not in text
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    # title twice, lead, table, rules ×2, given ×2, truth ×2, method ×2, verdicts ×3, command, device, versions ×2, note
    assert page.words.count(HOSTILE) == 20
    Console(width=200, quiet=True).print(summary_table(hostile))


def test_dollars_in_a_title_are_no_formula(tmp_path: Path) -> None:
    plain = results()
    priced = dataclasses.replace(plain.methods[0], title="$\\frac{$")  # short enough to stand whole in the chart
    _, page = written(tmp_path, dataclasses.replace(plain, methods=[priced, *plain.methods[1:]]))
    assert page.cells[1][0] == "$\\frac{$"


def test_table_holds_the_numbers_of_the_runs(tmp_path: Path) -> None:
    what = results()
    _, page = written(tmp_path, what)
    first = statistics.mean(r.final["mAP"] for r in what.methods[0].runs)
    for method, cells in zip(what.methods, page.cells[1:], strict=True):
        assert cells[0].startswith(method.title)
        for cell, key in zip(cells[1:4], ("mAP", "CF1", "OF1"), strict=True):
            values = [r.final[key] for r in method.runs]
            assert cell.split(" ★")[0] == f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"
            assert ("★" in cell) == (method.name == "em")
        gain = statistics.mean(r.final["mAP"] for r in method.runs) - first
        assert float(cells[4].replace("−", "-")) == pytest.approx(gain, abs=0.051)
        assert float(cells[5]) == statistics.mean(r.seconds for r in method.runs)
        assert cells[6] == "2"
    assert "upper bound" in page.cells[3][0]
    assert "the last epoch" in page.words
    assert "best F1 on the validation images" in page.words


def test_headline_follows_the_numbers() -> None:
    what = results()
    said = headline(what)
    assert said.startswith("entropy reaches 80.1 mAP, 4.3 points above assume negative (75.8)")
    assert "; the upper bound, all labels, reaches 86.5, so 40 % of the gap is closed (means over 2 seeds)." in said
    worse = dataclasses.replace(what.methods[1], runs=[run(0, 60.0, 1.0, 1.0)])
    said = headline(dataclasses.replace(what, methods=[what.methods[0], worse, what.methods[2]]))
    assert said.startswith("No method does better than assume negative, which reaches 75.8 mAP")
    assert "closed" not in said


def test_gallery_says_right_wrong_and_missed(tmp_path: Path) -> None:
    _, page = written(tmp_path, results())
    verdicts = [span for span in page.spans if span[0] in ("right", "wrong", "missed")][3:]  # after the legend
    assert verdicts == [
        *(("right", "✓ 3"), ("missed", "? 7"), ("missed", "? 8")),
        *(("right", "✓ 3"), ("right", "✓ 7"), ("missed", "? 8"), ("wrong", "✗ 9")),
    ]


def test_one_seed_has_no_spread_and_odd_curves_are_drawn(tmp_path: Path) -> None:
    lone = RunCurve(0, [{"epoch": 1.0, "loss": 1.0, "mAP": float("nan")}], {"mAP": 5.0, "CF1": 0.0, "OF1": 0.0}, 1.0)
    what = dataclasses.replace(results(), methods=[MethodRuns("a", "A", [lone])], upper="none", gallery=[])
    _, page = written(tmp_path, what)
    assert page.cells[1][1] == "5.0 ★"
    assert "Test images" not in page.words


def test_terminal_table_shows_the_same_numbers() -> None:
    out = io.StringIO()
    Console(width=160, file=out).print(summary_table(results()))
    text = out.getvalue()
    for number in ("75.8 ± 0.9", "80.1 ± 1.1 ★", "86.5 ± 0.7", "+4.3", "+10.7"):
        assert number in text


@pytest.mark.parametrize("methods", [[], [MethodRuns("a", "A", [])]])
def test_nothing_to_report_is_an_error(tmp_path: Path, methods: list[MethodRuns]) -> None:
    with pytest.raises(DataError, match="method"):
        write_report(tmp_path / "report.html", dataclasses.replace(results(), methods=methods))
    assert not list(tmp_path.iterdir())
