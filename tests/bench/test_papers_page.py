"""The measured figures of docs/papers.md are those of the file of results."""

from __future__ import annotations

import copy
import doctest
import json
import re
from pathlib import Path
from statistics import fmean, stdev

import pytest

from benchmarks import papers_page
from benchmarks.papers_page import GRIDS, TABLES, block, load, written

PAGE = papers_page.PAGE.read_text(encoding="utf-8")


def test_the_page_is_as_the_results_are() -> None:
    """If it is not: python -m benchmarks.papers_page."""
    assert written(PAGE, load()) == PAGE


def test_every_table_is_on_the_page() -> None:
    named = re.findall(r"<!-- measured ([\w-]+) -->", PAGE)
    assert {*named} == {*TABLES, *GRIDS, "pu-mlc-table1", "published-or-fair", "small-scale", "small-seconds"}
    assert len(named) == len(set(named)) == PAGE.count("<!-- end -->")


def test_no_figure_of_ours_stands_outside_of_the_tables() -> None:
    """A mean with its spread and its seeds, which nobody would correct there."""
    outside = papers_page._BLOCK.sub("", PAGE)
    assert not re.search(r"\d\d\.\d\d[^|]*\(\d seeds?\)", outside)
    rows = load()
    ours = {papers_page._text(row["mAP"], 2) for row in rows.values() if row["mAP"]["sd"] is not None}
    assert not {text for text in ours if text in outside}


def test_what_a_bench_has_made_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("b-table10", "none"), ("b-table9", "- Not complete: 3 of 12 runs are there.")):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / "table.md").write_text(text)
    (tmp_path / "results" / "b-table9" / "figures").mkdir()
    (tmp_path / "results" / "b-table9" / "figures" / "01-known-ratio.svg").touch()
    (tmp_path / "results" / "results").mkdir()
    for key, seconds in (("a" * 16, 700.4), ("b" * 16, 400.0), ("c" * 16, 1.0)):
        body = {"key": key, "seconds": seconds, "device": "GPU"}
        (tmp_path / "results" / "results" / f"{key}.json").write_text(json.dumps({"body": body}))
    listed = ["b-table9 · an (x) · VOC · seed 0 (also d, b-table10)", "b-table9 · gr · seed 0"]
    lines = [f"{letter * 16}  done      {line}" for letter, line in zip("ab", listed, strict=True)]
    (tmp_path / "results" / "runs.txt").write_text("\n".join([*lines, "b-table9: 2 runs, 2 done", ""]))
    monkeypatch.setattr(papers_page, "PAGE", tmp_path / "papers.md")
    monkeypatch.setattr(papers_page, "BENCH", tmp_path / "results")
    made = papers_page.small_scale().splitlines()[2:]
    assert made == [
        "| [b-table9](results/b-table9/table.md) | 3 of 12 | 1,100 | GPU"
        " | [known ratio](results/b-table9/figures/01-known-ratio.svg) |",
        "| [b-table10](results/b-table10/table.md) | 1 | 700 | GPU |  |",
    ]


def test_the_list_of_runs_is_that_of_the_stored_ones() -> None:
    stored = {run["key"] for run in papers_page._stored()}
    specs = [file.parent.name for file in papers_page.BENCH.glob("*/table.md")]
    assert {key for spec in specs for key in papers_page._keys(spec)} == stored
    listed = (papers_page.BENCH / papers_page.LISTED).read_text()
    assert all(f"{spec}: {len(papers_page._keys(spec))} runs" in listed for spec in specs)


def test_seconds_are_medians_of_the_stored_runs() -> None:
    found = [json.loads(file.read_text())["body"] for file in papers_page.BENCH.glob("results/*.json")]
    of_jocor = sorted(run["seconds"] for run in found if run["recipe"]["method"]["name"] == "jocor")
    middle = (of_jocor[(len(of_jocor) - 1) // 2] + of_jocor[len(of_jocor) // 2]) / 2
    text = papers_page.small_seconds()
    assert text.startswith(f"{len(found)} runs on NVIDIA H200, ")
    assert f"`jocor` {middle:.0f}" in text


def test_a_table_by_hand() -> None:
    """Differences over the seeds that both have, by an independent sum."""
    rows = load()
    an, ls = ({run["seed"]: run["mAP"] for run in rows[key]["runs"]} for key in ("fair: an", "comparators: an-ls"))
    both = an.keys() & ls.keys()
    gain = sum(ls[seed] - an[seed] for seed in both) / len(both)
    mean = rows["comparators: an-ls"]["mAP"]["mean"]
    line = next(line for line in block("em-table1", rows).splitlines() if line.startswith("| `an-ls` "))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:3] == ["87.90 ± 0.21", "+2.0"]  # 87.90 - 85.89
    assert cells[3].startswith(f"{mean:.2f} ± ")
    assert float(cells[4].replace("−", "-")) == pytest.approx(gain, abs=0.051)


def test_the_small_scale_by_hand() -> None:
    """The figures of 160 px are means over the stored runs."""

    def runs(row: str, column: str) -> list[float]:
        found = (json.loads(file.read_text())["body"] for file in papers_page.BENCH.glob("results/*.json"))
        return [run["test"]["mAP"] for run in found if (run["spec row"], run["column"]) == (row, column)]

    k, v = runs("k", "VOC"), runs("v", "VOC")
    lines = {line.split("|")[1].strip(): line for line in block("gr-table3", load()).splitlines()}
    assert f"| {fmean(k):.2f} ± {stdev(k):.2f}" in lines["k"]
    both = float(lines["k"].split("|")[-2].replace("−", "-")) - float(lines["v"].split("|")[-2].replace("−", "-"))
    assert both == pytest.approx(fmean(k) - fmean(v), abs=0.11)
    ten = runs("frozen", "10 %")
    assert f"| frozen | {fmean(ten):.2f} ± {stdev(ten):.2f}" in block("pu-mlc-table11", load())
    assert block("pu-mlc-table11", load()).splitlines()[-1].split("|")[2].endswith(" / 75.7 ")  # as published


def test_other_results_make_another_page() -> None:
    rows = copy.deepcopy(dict(load()))
    rows["comparators: jocor"]["mAP"]["mean"] += 0.01  # type: ignore[index]
    assert written(PAGE, rows) != PAGE
    del rows["comparators: jocor"]
    assert "| `jocor` | 86.3 | +0.5 | not run yet |  | " in written(PAGE, rows)


def test_examples() -> None:
    found = doctest.testmod(papers_page)
    assert found.attempted
    assert not found.failed
