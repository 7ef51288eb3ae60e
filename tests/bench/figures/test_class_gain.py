from __future__ import annotations

import math
import statistics

import pytest

from pluralis.bench.figures.class_gain import class_gain, gains
from pluralis.errors import DataError
from tests.bench.figures.runs import result


def run(row: str, seed: int, draw: int = 1, **aps: float | None):
    return result(row, seed=seed, draw=draw, per_class_ap=aps)


def test_runs_are_paired_by_seed_and_draw_and_classes_sorted_by_gain() -> None:
    base = [run("an", 1, cat=50, dog=40, cow=1, ox=None), run("an", 0, cat=60, dog=10, cow=1, ox=3)]
    ours = [run("gr", 0, cat=61, dog=30, cow=0, ox=9), run("gr", 1, cat=53, dog=44, cow=0, ox=9)]
    ours.append(run("gr", 2, cat=99, dog=99, cow=99, ox=9))  # without a partner
    found = gains(ours, base)
    assert found.classes == ("dog", "cat", "cow")  # ox could not be measured in one of the runs
    assert found.mean.tolist() == [12, 2, -1]
    assert found.deviation.tolist() == pytest.approx([statistics.stdev([20, 4]), statistics.stdev([1, 3]), 0])
    assert found.pairs == 2


def test_columns_are_not_mixed() -> None:
    values = {("an", "VOC"): 10.0, ("an", "COCO"): 50.0, ("gr", "VOC"): 11.0, ("gr", "COCO"): 53.0}
    runs = [result(row, column=column, per_class_ap={"cat": ap}) for (row, column), ap in values.items()]
    found = gains(runs[2:], runs[:2])
    assert (found.mean.tolist(), found.pairs) == ([2], 2)
    figure = class_gain(runs, "an")
    assert [axes.patches[0].get_width() for axes in figure.axes] == [1, 3]


def test_a_row_without_a_pair_is_said_and_the_others_are_drawn() -> None:
    figure = class_gain([run("an", 0, cat=1), run("gr", 0, cat=3), run("em", 5, cat=3)], "an")
    assert [axes.get_title().split(":")[0] for axes in figure.axes] == ["gr"]
    assert figure.get_label().startswith("Left out: em, as no two runs")


def test_one_pair_has_no_deviation() -> None:
    found = gains([run("gr", 0, cat=3)], [run("an", 0, cat=1)])
    assert found.mean.tolist() == [2]
    assert math.isnan(found.deviation[0])


def test_the_bars_are_the_largest_changes_from_top_to_bottom() -> None:
    names = {f"c{i}": float(i) for i in range(9)}
    figure = class_gain([run("an", 0, **dict.fromkeys(names, 4.0)), run("gr", 0, **names)], "an", most=4)
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["c0", "c1", "c7", "c8"]
    assert [bar.get_width() for bar in axes.patches] == [-4, -3, 3, 4]
    assert axes.get_title() == "gr: 44% of the classes gain"


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(DataError, match="same column, draw and seed"):
        gains([run("gr", 0, cat=1)], [run("an", 0, draw=2, cat=1)])
    with pytest.raises(DataError, match="AP of the same class"):
        gains([run("gr", 0, cat=1)], [run("an", 0, dog=1)])
    with pytest.raises(DataError, match="did you mean 'gr'"):
        class_gain([run("gr", 0, cat=1)], "gr2")
    with pytest.raises(DataError, match="beside those of the baseline"):
        class_gain([run("gr", 0, cat=1)], "gr")
