from __future__ import annotations

import numpy as np
import pytest

from pluralis.bench.figures.curves import curve, curves, learning_curves
from pluralis.errors import DataError
from tests.bench.figures.runs import result


def history(*values: float | None) -> list[dict[str, float | None]]:
    return [{"epoch": float(i + 1), "stage": 0.0, "test mAP": v, "loss": 1.0} for i, v in enumerate(values)]


def test_mean_and_range_over_seeds_also_where_a_run_is_shorter() -> None:
    runs = [result(seed=0, history=history(10, 20, 30)), result(seed=1, history=history(14, 26))]
    found = curve(runs, "test mAP")
    assert found is not None
    assert found.epochs.tolist() == [1, 2, 3]
    assert found.mean.tolist() == [12, 23, 30]
    assert found.low.tolist() == [10, 20, 30]
    assert found.high.tolist() == [14, 26, 30]
    assert found.seeds.tolist() == [2, 2, 1]


def test_epochs_count_through_stages_and_holes_are_left_out() -> None:
    stages = [{"stage": 0.0, "epoch": 1.0, "loss": 1.0}, {"stage": 1.0, "epoch": 1.0, "loss": 3.0, "test mAP": 5.0}]
    found = curve([result(history=stages)], "test mAP")
    assert found is not None
    assert found.epochs.tolist() == [2]
    assert curve([result(history=history(None, None))], "test mAP") is None


def test_each_row_is_a_line_and_each_column_where_there_are_several() -> None:
    runs = [result(r, column=c, history=history(1, 2)) for r in ("an", "gr") for c in ("10 %", "90 %")]
    assert list(curves(runs, "loss")) == ["an, 10 %", "an, 90 %", "gr, 10 %", "gr, 90 %"]
    assert list(curves(runs[:1], "loss")) == ["an"]


def test_what_is_drawn_without_a_name_is_what_every_run_has() -> None:
    full, poor = result("an", history=history(40, 50)), result("gr", history=[{"epoch": 1.0, "loss": 2.0}])
    assert learning_curves([full]).axes[0].get_ylabel() == "test mAP, %"
    (axes,) = learning_curves([full, poor]).axes
    assert axes.get_ylabel() == "loss"
    assert [line.get_ydata().tolist() for line in axes.get_lines()] == [[1.0, 1.0], [2.0]]
    assert np.allclose(axes.get_lines()[0].get_xdata(), [1, 2])


def test_several_figures_have_a_line_each() -> None:
    entries = [
        {"train p of annotated positives": 0.5, "loss": 2.0},
        {"train p of annotated positives": 0.7, "loss": 1.0},
    ]
    (axes,) = learning_curves([result(history=entries)], ["train p of annotated positives", "loss"]).axes
    lines = {line.get_label(): line.get_ydata().tolist() for line in axes.get_lines()}
    assert lines == {"an: p of annotated positives": [0.5, 0.7], "an: loss": [2.0, 1.0]}


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("train positive loss", "run.watch_train"),
        ("test mAP", "run.watch_test"),
        ("los", "did you mean 'loss'"),
        (" ", "choose from 'loss'"),
    ],
)
def test_a_curve_that_nobody_recorded_says_what_to_do(what: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        curves([result(history=[{"loss": 1.0}])], what)
