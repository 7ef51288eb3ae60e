from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pluralis.bench.figures.label_counts import draw_label_counts, label_counts
from pluralis.bench.figures.predicted import predictions
from pluralis.bench.store import Result
from pluralis.errors import DataError
from tests.bench.figures.runs import TINY, result


def test_labels_are_counted_by_what_was_written_and_what_is_true() -> None:
    given = [[1, 0, 0], [0, 0, -1], [1, 0, 0]]
    truth = [[1, 1, -1], [1, -1, -1], [1, 1, 0]]
    found = label_counts(["a", "b", "c"], given, truth)
    assert found.written.tolist() == [2, 0, 0]
    assert found.hidden.tolist() == [1, 2, 0]
    assert found.absent.tolist() == [0, 1, 1]  # what is verified or not known is left out


def test_the_bars_are_those_of_the_runs_own_data(kept: list[Result]) -> None:
    (axes,) = draw_label_counts(kept, most=4).axes
    found = predictions(kept[0])
    present = (found.truth > 0).sum(0)
    order = np.argsort(-present, kind="stable")[:4]
    assert [bar.get_height() for bar in axes.patches[:4]] == (found.given > 0).sum(0)[order].tolist()
    assert [bar.get_y() + bar.get_height() for bar in axes.patches[4:]] == present[order].tolist()
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [found.classes[c] for c in order]
    hidden = ((found.given == 0) & (found.truth > 0)).sum() / (found.given == 0).sum()
    assert axes.get_title() == f"{hidden:.1%} of the unannotated labels are present"


def test_it_is_the_first_run_of_each_column_and_what_hides_nothing_is_said(kept: list[Result]) -> None:
    few = kept[0].recipe | {"data": kept[0].recipe["data"] | {"options": {"count": 20}}}
    open_data = few | {"data": few["data"] | {"protocol": "as-given"}}
    runs = [replace(kept[0], column="b"), replace(kept[0], column="a", recipe=few), replace(kept[0], column="a")]
    figure = draw_label_counts([*runs, replace(kept[0], column="c", recipe=open_data)])
    assert [axes.get_title().split(":")[0] for axes in figure.axes] == ["b", "a"]
    assert [axes.get_lines()[0].get_ydata()[0] for axes in figure.axes] == [60, 20]
    assert figure.get_label().startswith("Left out: c, as no label is hidden from")


def test_data_that_hides_nothing_is_refused() -> None:
    recipe = {"data": {"format": "scenes", "options": TINY["data.options"]}}
    with pytest.raises(DataError, match="no label is hidden"):
        draw_label_counts([result(recipe=recipe)])
