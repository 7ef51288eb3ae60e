"""Tables from results: numbers, ranks, published columns, differences, and four formats that all say it."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import scipy.stats

from pluralis.bench import render
from pluralis.bench.runs import Run
from pluralis.bench.spec import Spec
from pluralis.bench.store import Result
from pluralis.bench.table_model import Cell, Head, Line, Table
from pluralis.bench.tables import make_tables
from pluralis.config import Recipe
from tests.bench.benches import result, write_spec

SPEC = (
    'baseline = "an"\nalso = ["CF1"]\nseconds = true\n'
    '[[rows]]\nname = "an"\ngroup = "plain"\n[[rows]]\nname = "g_r & co"\n'
    '[[rows]]\nname = "=cmd|<b>"\n[[rows]]\nname = "all"\nbound = true\n[[rows]]\nname = "MIME"\nseeds = 0\n'
    '[[published]]\nsource = "Chen, Table 2"\nbackbone = "ResNet-50"\nresolution = 448\n'
    'values = {an = "85.89 ± 0.38", "g_r & co" = 89.8, MIME = "89.20 ± 0.16"}\n'
)
VALUES = {"an": [80.0, 80.5, 81.0], "g_r & co": [81.0, 81.7, 81.5], "=cmd|<b>": [79.0, 80.1], "all": [95.0, 96.0]}


def planned(row: str, seeds: int = 3, trial: bool = False) -> list[Run]:
    return [Run(f"{row}-{s}-1200", row, row, "", s, 1200, {}, Recipe(), [], "d", trial) for s in range(seeds)]


def measured(values: dict[str, list[float]]) -> list[Result]:
    return [
        result(row, value, seed, test={"mAP": value, "CF1": value / 2})
        for row, each in values.items()
        for seed, value in enumerate(each)
    ]


@pytest.fixture
def tables(tmp_path: Path) -> list[Table]:
    runs = [run for row in VALUES for run in planned(row)]
    results = [*measured(VALUES), result("=cmd|<b>", seed=2, failure="the loss is nan")]
    return make_tables(Spec.load(write_spec(tmp_path, SPEC)), runs, results, [])


def texts(table: Table) -> dict[str, list[tuple[str, str]]]:
    return {line.name: [(cell.text, cell.mark) for cell in line.cells] for line in table.lines}


def test_means_ranks_and_published_numbers_in_their_own_column(tables: list[Table]) -> None:
    main = tables[0]
    assert [head.title for head in main.header] == ["mAP", "mAP published [1] (ResNet-50, 448 px)"]
    assert texts(main) == {
        "an": [("80.50 ± 0.50", "second"), ("85.89 ± 0.38", "")],
        "g_r & co": [("81.40 ± 0.36", "best"), ("89.80", "best")],
        "=cmd|<b>": [("79.55 ± 0.78 (2 of 3)", ""), ("", "")],
        "all": [("95.50 ± 0.71 (2 of 3)", ""), ("", "")],
        "MIME": [("", ""), ("89.20 ± 0.16", "second")],
    }
    assert "[1] Chen, Table 2" in main.notes
    assert any("left aside: all" in note for note in main.notes)
    assert any(note.startswith("Seeds 0, 1, 2; draws of the labels 1200; tiny, 24 px") for note in main.notes)
    assert any(note.startswith("Not complete: 11 of 12 runs are there.") for note in main.notes)


def test_differences_with_intervals_and_corrected_p(tables: list[Table]) -> None:
    table = tables[1]
    assert table.title == "Test: difference to an in mAP"
    assert "an" not in texts(table)
    assert "MIME" not in texts(table)
    known = [scipy.stats.ttest_rel(VALUES[row], VALUES["an"][: len(VALUES[row])]) for row in list(VALUES)[1:]]
    ps = np.array([one.pvalue for one in known])
    for line, one, raw in zip(table.lines, known, ps, strict=True):
        mean, low, high, p, count = line.cells[0].numbers
        gains = np.subtract(VALUES[line.name], VALUES["an"][: len(VALUES[line.name])])
        np.testing.assert_allclose([mean, low, high], [gains.mean(), *one.confidence_interval()], rtol=1e-9)
        assert count == len(gains)
        assert p is not None
        assert raw <= p <= 1
    smallest = min(line.cells[0].numbers[3] or 0 for line in table.lines)
    assert smallest == pytest.approx(min(1, 3 * ps.min()))
    assert texts(table)["g_r & co"][0][0].startswith("+0.90 [+0.")
    assert any("3 comparisons" in note for note in table.notes)


def test_other_metrics_and_seconds_only_when_asked(tables: list[Table], tmp_path: Path) -> None:
    assert [table.title.split(": ")[1] for table in tables] == [
        "mAP",
        "difference to an in mAP",
        "CF1",
        "difference to an in CF1",
        "seconds of training",
    ]
    assert texts(tables[2])["an"] == [("40.25 ± 0.25", "second")]
    assert texts(tables[4])["an"][0][0] == "3.0 ± 0.0"
    assert texts(tables[4])["all"][0][0] == "3.0 ± 0.0 (2 of 3)"
    spec = Spec.load(write_spec(tmp_path, SPEC.replace("seconds = true", "").replace('also = ["CF1"]', "")))
    few = make_tables(spec, planned("an"), measured({"an": [1.0]}), ["COCO"])
    assert len(few) == 2
    assert not any("econd" in head.title for table in few for head in table.header)
    assert texts(few[0])["an"][0] == ("1.00 (1 of 3)", "")
    assert "Not run, since no images were named: COCO." in few[0].notes


def test_equal_figures_share_a_rank_and_a_bound_has_none(tmp_path: Path) -> None:
    spec = Spec.load(write_spec(tmp_path, SPEC))
    values = {"an": [80.001], "g_r & co": [80.004], "=cmd|<b>": [70.0], "all": [99.0]}
    found = texts(make_tables(spec, [r for row in values for r in planned(row, 1)], measured(values), [])[0])
    assert [found[row][0][1] for row in values] == ["best", "best", "second", ""]


def test_nothing_is_marked_before_all_rows_are_whole(tmp_path: Path) -> None:
    spec = Spec.load(write_spec(tmp_path, SPEC))
    values = {"an": [80.0, 80.0], "g_r & co": [90.0], "=cmd|<b>": [70.0, 70.0]}
    runs, results = [r for row in values for r in planned(row, 2)], measured(values)
    read = ["80.00 ± 0.00", "90.00 (1 of 2)", "70.00 ± 0.00"]

    def cells(more: list[Result], asked: list[Run]) -> list[tuple[str, str]]:
        found = texts(make_tables(spec, asked, [*results, *more], [])[0])
        return [found[row][0] for row in values]

    assert cells([], runs) == [(text, "") for text in read]
    assert cells([], [*runs, *planned("all", 2)]) == [(text, "") for text in read]
    ended = [result("g_r & co", seed=1, failure="the loss is nan")]  # it will not come, and its row is not ranked
    marked = list(zip(read, ("best", "", "second"), strict=True))
    assert cells(ended, runs) == marked
    assert cells(ended, [*runs, *planned("all", 2)]) == marked  # a bound takes no part
    assert cells(ended, [*runs, *planned("MIME", 1)]) == [(text, "") for text in read]  # not run yet
    assert cells(ended, [*runs, *planned("MIME", 1, trial=True)]) == [(text, "") for text in read]  # not chosen yet


def test_pairs_that_are_missing_are_counted(tmp_path: Path) -> None:
    spec = Spec.load(write_spec(tmp_path, 'baseline = "an"\n' + COMPARED))
    runs = [run for row in ("an", "gr", "em") for run in planned(row, 6)]
    results = measured({"an": [1.0, 2.0, 4.0], "gr": [2.0, 5.0], "em": [7.0]})
    found = texts(make_tables(spec, runs, results, [])[1])
    assert found["gr"][0][0].startswith("+2.00 [")
    assert found["gr"][0][0].endswith("(2 of 6 pairs)")
    assert found["em"][0][0] == "+6.00 (1 of 6 pairs)"
    results = measured({"an": [1.0, 2.0, 4.0], "gr": [2.0, 3.0]})
    assert texts(make_tables(spec, runs, results, [])[1])["gr"][0][0] == "+1.00 (no spread, 2 of 6 pairs)"
    one = [run for row in ("an", "em") for run in planned(row, 1)]
    whole = measured({"an": [1.0], "em": [7.0]})
    assert texts(make_tables(spec, one, whole, [])[1])["em"][0][0] == "+6.00 (1 pair)"


def test_pairs_of_draws_that_are_missing_are_counted(tmp_path: Path) -> None:
    """With several draws their means are compared: a pair that lacks is a pair all the same."""
    spec = Spec.load(write_spec(tmp_path, 'baseline = "an"\n' + COMPARED))
    places = [(draw, seed) for draw in (0, 1, 2) for seed in (0, 1)]
    runs = [Run(f"{r}-{s}-{d}", r, r, "", s, d, {}, Recipe(), [], "d") for r in ("an", "gr") for d, s in places]
    results = [result("an", 1.0, s, d) for d, s in places] + [result("gr", 2.0 + d, s, d) for d, s in places[:-1]]
    table = make_tables(spec, runs, results, [])[1]
    assert table.lines[0].cells[0].numbers[4] == 3
    assert table.lines[0].cells[0].text.endswith("(5 of 6 pairs)")


def test_tables_of_thresholds_count_runs(tmp_path: Path) -> None:
    spec = Spec.load(write_spec(tmp_path, 'thresholds = true\n[[rows]]\nname = "an"\n'))
    found = [result("an", seed=seed, test={"mAP": 1.0, "raw CF1": 40.0 + seed}) for seed in range(2)]
    assert texts(make_tables(spec, planned("an", 6), found, [])[1])["an"][0][0] == "40.50 ± 0.71 (2 of 6)"


def test_what_failed_is_not_what_was_not_run(tmp_path: Path) -> None:
    spec = Spec.load(write_spec(tmp_path, SPEC))
    runs = [*planned("an"), *planned("g_r & co"), *planned("all")]
    failed = ["g_r & co-1-1200", "an-2-1200"]
    table = make_tables(spec, runs, measured({"an": [80.0]}), [], failed)[0]
    said = {name: cells[0][0] for name, cells in texts(table).items()}
    assert (said["an"], said["g_r & co"], said["all"]) == ("80.00 (1 of 3)", "failed", "not run yet")
    assert {f"{row}: 1 of the runs failed; the same command tries again." for row in ("an", "g_r & co")} <= set(
        table.notes
    )
    assert any(note.startswith("Not complete: 1 of 9 runs are there.") for note in table.notes)


def test_runs_of_different_code_are_in_the_notes(tmp_path: Path) -> None:
    """A training that stands in several cells is one run."""
    spec = Spec.load(write_spec(tmp_path, SPEC))
    new = [result("an", seed=seed, code_hash="new") for seed in range(2)]
    old = result("g_r & co", code_hash="old")
    said = "Made by different code of the same version: new (2), old (1) of the runs."
    notes = make_tables(spec, [], [*new, old, replace(old, row="all")], [])[0].notes
    assert [note for note in notes if "different code" in note] == [f"{said} `--redo` makes those of other code anew."]
    assert not any("different code" in note for note in make_tables(spec, [], new, [])[0].notes)


def test_what_is_set_over_the_spec_is_in_the_notes(tmp_path: Path) -> None:
    spec = Spec.load(write_spec(tmp_path, 'about = "Ten epochs."\n' + SPEC))
    notes = make_tables(spec, [], [], [], settings=["train.epochs=1", "train.lr=3"])[0].notes
    assert notes[:2] == ["Ten epochs.", "Set over the spec, whatever else is said here: train.epochs=1, train.lr=3."]
    assert not any("Set over" in note for note in make_tables(spec, [], [], [])[0].notes)


GRID = '[[rows]]\nname = "gr"\nmethod = "gr"\ngrid = {"train.lr" = [1, 2, 3]}\n[[rows]]\nname = "an"\n'


def test_who_chooses_nothing_is_not_said_to_have_chosen(tmp_path: Path) -> None:
    spec = Spec.load(write_spec(tmp_path, 'selections = ["clean", "last"]\n' + GRID))
    found = [
        result("gr", column=rule, selection=rule, spec_row="gr", grid={"train.lr": rate})
        for rule, rate in (("clean", 3), ("last", 2))
    ]
    tables = make_tables(spec, [], found, [])
    assert "gr: chosen by the score of held-out rows: train.lr = 3 (clean)." in tables[0].notes
    assert "gr: train.lr = 2 (last: middle of each list, nothing chosen)." in tables[0].notes
    assert "each rule chooses the settings of gr too" in tables[1].notes[0]
    assert "same training run" not in tables[1].notes[0]
    plain = Spec.load(write_spec(tmp_path, 'selections = ["clean", "last"]\n[[rows]]\nname = "an"\n'))
    assert "are the same training run" in make_tables(plain, [], [], [])[1].notes[0]


COMPARED = '[[rows]]\nname = "an"\n[[rows]]\nname = "gr"\n[[rows]]\nname = "em"\n'
DRAWN = '[[columns]]\nname = "a"\n[[columns]]\nname = "b"\n' + COMPARED


def drawn(rows: dict[str, float], columns: str, draws: list[int], seeds: int = 2) -> list[Result]:
    """Differences that depend on draw and seed, so that another pairing gives another mean."""
    return [
        result(row, test={"mAP": gain * (1 + draw + seed) ** 2}, column=column, draw=draw, seed=seed)
        for row, gain in rows.items()
        for column in columns
        for draw in draws
        for seed in range(seeds)
    ]


def test_pairs_share_the_draw_and_the_notes_say_what_was_compared(tmp_path: Path) -> None:
    spec = Spec.load(write_spec(tmp_path, 'baseline = "an"\n' + DRAWN))
    runs = [*drawn({"an": 1.0}, "ab", [0, 1]), *drawn({"gr": 2.0}, "ab", [0, 1]), *drawn({"em": 3.0}, "a", [1])]
    table = make_tables(spec, [], runs, [])[1]
    em, gr = ({line.name: line for line in table.lines}[name] for name in ("em", "gr"))
    assert em.cells[0].numbers[0] == pytest.approx(np.mean([2 * 4, 2 * 9]))
    assert gr.cells[0].numbers[0] == pytest.approx(np.mean([1, 4, 4, 9]))
    assert gr.cells[0].numbers[4] == 2  # draws
    notes = " ".join(table.notes)
    assert "not corrected for several comparisons" in notes
    assert "the comparisons of each column: a 2, b 1." in notes
    assert "Over one draw of the labels: intervals and p hold for this draw alone" in notes
    assert "the means of the draws are compared" in notes
    assert "Two draws leave one degree of freedom" in notes
    more = drawn({"an": 1.0, "gr": 2.0}, "ab", [0, 1, 2])
    table = make_tables(spec, [], more, [])[1]
    assert table.lines[0].cells[0].numbers[4] == 3
    assert "the means of the draws are compared" in " ".join(table.notes)
    assert "hold for this draw" not in " ".join(table.notes)
    assert "one degree of freedom" not in " ".join(table.notes)


def test_differences_without_spread_have_no_p(tmp_path: Path) -> None:
    spec = Spec.load(write_spec(tmp_path, 'baseline = "an"\n' + COMPARED))
    runs = [result(row, value + seed, seed) for row, value in (("an", 80.0), ("gr", 82.0)) for seed in range(3)]
    table = make_tables(spec, [], runs, [])[1]
    assert texts(table) == {"gr": [("+2.00 (no spread)", "")]}
    assert table.notes[1:] == ["No spread: all pairs differ by the same."]


def test_published_numbers_of_a_sweep_have_a_line_of_their_own(tmp_path: Path) -> None:
    text = '[[rows]]\nname = "gr"\nmethod = "gr"\nchoose = "all"\ngrid = {"train.lr" = [1, 2]}\n[[rows]]\nname = "an"\n'
    text += '[[published]]\nsource = "S"\nbackbone = "R"\nresolution = 1\nvalues = {gr = 80.0, an = 79.0}\n'
    spec = Spec.load(write_spec(tmp_path, text))
    runs = [Run(f"k{n}", f"gr, lr {n}", "gr", "", 0, 0, {}, Recipe(), [], "d") for n in (1, 2)]
    assert texts(make_tables(spec, [*runs, *planned("an", 1)], measured({"an": [1.0]}), [])[0]) == {
        "gr": [("", ""), ("80.00", "best")],
        "gr, lr 1": [("not run yet", ""), ("", "")],
        "gr, lr 2": [("not run yet", ""), ("", "")],
        "an": [("1.00", ""), ("79.00", "second")],
    }


def test_what_diverged_and_what_was_not_measured(tmp_path: Path) -> None:
    spec = Spec.load(write_spec(tmp_path, SPEC))
    runs = [*planned("an", 1), *planned("g_r & co", 1), *planned("all", 2)]
    found = [result("an", test={"OF1": 3.0}), result("g_r & co", failure="the loss is nan"), result("all", 90.0)]
    table = make_tables(spec, runs, [*found, result("all", seed=1, failure="no")], [])[0]
    said = {name: cells[0][0] for name, cells in texts(table).items()}
    assert (said["an"], said["g_r & co"], said["all"]) == ("not measured", "diverged", "90.00 (1 of 2)")
    assert {"g_r & co: 1 of the runs diverged.", "all: 1 of the runs diverged."} <= set(table.notes)


def test_what_is_not_there_yet(tmp_path: Path) -> None:
    spec = Spec.load(write_spec(tmp_path, SPEC))
    runs = [*planned("an"), *planned("g_r & co", trial=True)]
    found = texts(make_tables(spec, runs, [], [])[0])
    assert found["an"][0] == ("not run yet", "")
    assert found["g_r & co"][0] == ("not chosen yet", "")


def test_markdown(tables: list[Table]) -> None:
    text = render.markdown(tables[0])
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}  # no name breaks a line into more cells
    assert "| an | <u>80.50 ± 0.50</u> | 85.89 ± 0.38 |" in lines
    assert r"| g\_r & co | **81.40 ± 0.36** | **89.80** |" in lines
    assert r"| =cmd\|\<b> | 79.55 ± 0.78 (2 of 3) |  |" in lines
    assert "| *plain* |  |  |" in lines
    assert "- [1] Chen, Table 2" in text


def test_latex(tables: list[Table]) -> None:
    text = render.latex(tables[0])
    assert r"an & \underline{80.50 $\pm$ 0.50} & 85.89 $\pm$ 0.38 \\" in text
    assert r"g\_r \& co & \textbf{81.40 $\pm$ 0.36} & \textbf{89.80} \\" in text
    assert r"=cmd|$<$b$>$ & 79.55" in text
    assert r"\begin{tabular}{lrr}" in text
    for line in text.splitlines():
        if line.endswith(r"\\") and "multicolumn" not in line:
            assert len(re.findall(r"(?<!\\)&", line)) == 2, line
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    assert "$-$" in render.latex(tables[1])


def test_csv_holds_every_number_in_full(tables: list[Table]) -> None:
    rows = list(csv.DictReader(io.StringIO(render.as_csv(tables))))
    found = {(r["table"], r["row"], r["column"], r["figure"]): r for r in rows}
    mean = found["Test: mAP", "g_r & co", "mAP", "mean"]
    assert float(mean["value"]) == pytest.approx(np.mean(VALUES["g_r & co"]), rel=1e-15)
    assert mean["mark"] == "best"
    assert found["Test: mAP", "an", "mAP", "sd"]["value"] == "0.5"
    assert found["Test: mAP", "an", "mAP published [1] (ResNet-50, 448 px)", "mean"]["value"] == "85.89"
    assert ("Test: mAP", "'=cmd|<b>", "mAP", "runs") in found  # a name that is no formula any more
    ours = {r["column"] for r in rows if r["figure"] == "runs"}
    assert not any("published" in column for column in ours)
    assert float(found["Test: difference to an in mAP", "g_r & co", "mAP", "difference"]["value"]) == pytest.approx(0.9)


def test_html_is_whole_and_escaped(tables: list[Table]) -> None:
    page = render.html(tables[0])
    tree = ElementTree.fromstring(f"<main>{page}</main>")
    lines = {row[0].text: row for row in tree.iterfind(".//tbody/tr") if row[0].text}
    assert lines["an"].find("td/u") is not None
    best = lines["g_r & co"].find("td/b")
    assert best is not None
    assert best.text == "81.40 ± 0.36"
    assert lines["=cmd|<b>"][1].text == "79.55 ± 0.78 (2 of 3)"
    assert "<b>=" not in page
    small = Table("<i>", [Head("<u>", ())], [Line("a", [Cell("p < 0.001")], "<g>")], ["<n>"])
    assert "p &lt; 0.001" in "".join(
        ElementTree.tostring(ElementTree.fromstring(f"<a>{render.html(small)}</a>"), "unicode")
    )


def test_no_text_can_break_out_of_its_place() -> None:
    hostile = Table("T|_a_\n# b", [Head("^~", ())], [Line("[x] {y}", [Cell("a^b~c")])], ["<b> *n* [l](u)\n- item"])
    text = render.markdown(hostile)
    assert text.startswith(r"## T\|\_a\_ # b" + "\n")
    assert text.endswith(r"- \<b> \*n\* [l]\(u) - item" + "\n")
    text = render.latex(hostile)
    assert r"{}[x] \{y\} & a\textasciicircum{}b\textasciitilde{}c \\" in text  # after \\ a bracket is a length
    assert r"& \textasciicircum{}\textasciitilde{} \\" in text


def test_greek_letters_and_code() -> None:
    note = "`an` with α_h ≤ 3 & `a|b_c`"
    table = Table("τ, Σ and Α", [Head("µ", ())], [Line("k → β", [Cell("λ")])], [note, "one ` alone", "``"])
    text = render.latex(table)
    assert r"k $\to$ $\beta$ & $\lambda$ \\" in text
    assert (
        r"\caption{$\tau$, $\Sigma$ and A. \texttt{an} with $\alpha$\_h $\leq$ 3 \& \texttt{a|b\_c} one ` alone" in text
    )
    assert text.isascii()
    every = "".join(map(chr, [*range(0x391, 0x3A2), *range(0x3A3, 0x3AA), *range(0x3B1, 0x3CA)]))
    assert render.latex(Table(every, [], [])).isascii()
    text = render.markdown(table)
    assert "\n- `an` with α\\_h ≤ 3 & `a|b_c`\n- one \\` alone\n- \\`\\`\n" in text
    assert "<li><code>an</code> with α_h ≤ 3 &amp; <code>a|b_c</code></li><li>one ` alone</li>" in render.html(table)
