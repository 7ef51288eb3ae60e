from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from pluralis.bench.figures.against import known_ratio, known_share, sweep, sweep_lines
from pluralis.bench.store import Result
from pluralis.errors import DataError
from tests.bench.figures.runs import result


def run(row: str, share: float, m: float, seed: int = 0, protocol: str = "known-ratio", **changes: Any) -> Result:
    recipe = {
        "data": {"protocol": protocol, "protocol_share": share},
        "train": {"lr": 1e-4},
        "method": {"name": row, "params": {"b": share, "w": seed}},
    }
    return result(row, seed=seed, recipe=recipe, test={"mAP": m}, **changes)


def test_known_ratio_has_mean_and_deviation_of_the_seeds() -> None:
    runs = [run("gr", 0.1, 50), run("gr", 0.1, 54, 1), run("gr", 0.9, 70), run("an", 0, 80, protocol="complete")]
    axes = known_ratio(runs).axes[0]
    gr, an = axes.containers
    assert np.allclose(gr.lines[0].get_xdata(), [10, 90])
    assert np.allclose(gr.lines[0].get_ydata(), [52, 70])
    bars = np.array([segment[:, 1] for segment in gr.lines[2][0].get_segments()])
    deviation = statistics.stdev([50, 54])
    assert np.allclose(bars, [[52 - deviation, 52 + deviation], [70, 70]])  # one seed has no spread
    assert np.allclose(an.lines[0].get_xdata(), [100])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("known labels, %", "test mAP, %")


def test_a_protocol_without_a_share_is_refused() -> None:
    with pytest.raises(DataError, match="single-positive"):
        known_share(run("an", 0, 1, protocol="single-positive"))


def test_lines_of_a_sweep_are_rows_of_the_spec_or_values_of_a_second_key() -> None:
    runs = [run(f"gr, b {b}", b, 10 * b + w, w, spec_row="gr") for b in (3.0, 1.0, 2.0) for w in (0, 1)]
    (line,) = sweep_lines(runs, "method.params.b", "", "mAP")[0].values()
    assert line.x.tolist() == [1, 2, 3]
    assert line.mean.tolist() == [10.5, 20.5, 30.5]
    assert line.seeds.tolist() == [2, 2, 2]
    lines, _ = sweep_lines(runs, "method.params.b", "method.params.w", "mAP")
    assert list(lines) == ["method.params.w = 0", "method.params.w = 1"]
    assert lines["method.params.w = 1"].mean.tolist() == [11, 21, 31]
    assert np.isnan(lines["method.params.w = 1"].deviation).all()


def test_a_sweep_over_decades_has_its_own_values_as_ticks_and_the_baseline_across() -> None:
    runs = [run("gr", b, b, spec_row="gr") for b in (0.001, 0.1, 1.0)] + [run("an", 0, 33), run("an", 0, 35, 1)]
    axes = sweep(runs, "method.params.b", baseline="an").axes[0]
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.001", "0.1", "1"]
    assert axes.get_lines()[-1].get_ydata() == [34, 34]


def drawn(figure: Figure) -> dict[str, list[tuple[float, float]]]:
    """The points of each line by its label."""
    return {
        str(bars.get_label()): list(zip(*(bars.lines[0].get_data()), strict=True)) for bars in figure.axes[0].containers
    }


def test_known_ratio_keeps_data_sets_apart() -> None:
    columns = {"VOC 10 %": (0.1, 80.0), "COCO 10 %": (0.1, 60.0), "VOC 50%": (0.5, 90.0), "COCO 50%": (0.5, 70.0)}
    found = drawn(known_ratio([run("an", share, m, column=name) for name, (share, m) in columns.items()]))
    assert found == {
        "an, VOC": [(pytest.approx(10), 80), (50, 90)],
        "an, COCO": [(pytest.approx(10), 60), (50, 70)],
    }
    shares = [run("an", 0.1, 1.0, column="a tenth"), run("an", 0.5, 2.0, column="half")]
    assert list(drawn(known_ratio(shares))) == ["an"]  # one data set by its shares
    grid = [run(f"gr, b {b}", 0.1, b, spec_row="gr", grid={"method.params.b": b}) for b in (1.0, 2.0)]
    assert list(drawn(known_ratio(grid))) == ["gr, b 1.0", "gr, b 2.0"]


def test_a_sweep_keeps_columns_and_what_else_was_varied_apart() -> None:
    def one(m: float, **changes: Any) -> Result:
        return replace(run("gr, …", 1.0, m, spec_row="gr"), **changes)

    two = [one(80.0, column="VOC"), one(60.0, column="COCO")]
    base = [run("an", 0, m, column=name) for name, m in (("VOC", 70.0), ("COCO", 50.0))]
    figure = sweep([*two, *base], "method.params.b", baseline="an")
    assert drawn(figure) == {"gr, VOC": [(1, 80)], "gr, COCO": [(1, 60)]}
    levels = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].get_lines()[-2:]}
    assert levels == {"an, VOC": [70, 70], "an, COCO": [50, 50]}
    grids = [one(10.0 * c, grid={"method.params.b": 1.0, "method.params.c": c}) for c in (1.0, 2.0)]
    assert drawn(sweep(grids, "method.params.b")) == {"gr, c 1": [(1, 10)], "gr, c 2": [(1, 20)]}
    chosen = [replace(found, row="gr") for found in grids]  # values that were chosen, one in each column
    assert drawn(sweep(chosen, "method.params.b")) == {"gr": [(1, 15)]}
    rows = [*grids[:1], replace(grids[0], row="em, …", spec_row="em")]
    assert len(drawn(sweep(rows, "method.params.b", lines="method.params.w"))) == 2


def test_a_row_that_cannot_be_drawn_is_said_and_the_others_are_drawn() -> None:
    figure = known_ratio([run("gr", 0.1, 50), run("an", 0, 1, protocol="single-positive")])
    assert list(drawn(figure)) == ["gr"]
    assert figure.get_label().startswith("Left out: an, as the run 'an' (seed 0) has data.protocol = 'single-positive'")
    other = result("an", recipe={"train": {"lr": 1.0}}, test={"mAP": 1.0})
    figure = sweep([run("gr", 0.1, 50), other], "method.params.b")
    assert list(drawn(figure)) == ["gr"]
    assert figure.get_label().startswith(
        "Left out: an, as the recipe of the run 'an' (seed 0) has no 'method.params.b'"
    )


def test_figures_that_could_not_be_measured_are_left_out() -> None:
    runs = [run("gr", 0.1, 50), result("gr", recipe=run("gr", 0.9, 1).recipe, test={"mAP": None})]
    assert np.allclose(known_ratio(runs).axes[0].containers[0].lines[0].get_xdata(), [10])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": "train.lrr"}, "did you mean 'train.lr'"),
        ({"key": "data.protocol"}, "needs numbers"),
        ({"key": "train.lr", "metric": "MAP"}, "did you mean 'mAP'"),
        ({"key": "train.lr", "baseline": "an"}, "baseline 'an'"),
    ],
)
def test_bad_options_are_refused_with_what_would_be_right(options: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        sweep([run("gr", 0.1, 50)], **options)
