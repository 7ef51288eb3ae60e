from __future__ import annotations

import numpy as np
import pytest
import torch

from pluralis.bench.figures.pseudo_labels import accuracy, guess_tables, pseudo_labels
from pluralis.bench.store import Result
from pluralis.checkpoint import read_snapshot
from pluralis.data.scenes import make_scenes
from pluralis.errors import DataError


def test_accuracy_is_averaged_over_runs() -> None:
    def line(epoch: int, share: float | None) -> dict[str, float | None]:
        return {"epoch": epoch, "assigned": 4, "known": 4, "right": 1, "accuracy": share}

    found = accuracy([[line(2, 0.5), line(3, 0.75)], [line(2, 0.7), line(3, None)]])
    assert found is not None
    assert found.epochs.tolist() == [2, 3]
    assert found.mean == pytest.approx([60, 75])
    assert found.low == pytest.approx([50, 75])
    assert found.high == pytest.approx([70, 75])
    assert accuracy([[line(2, None)]]) is None  # no truth


def test_a_real_runs_curve_is_the_share_of_right_guesses(kept: list[Result]) -> None:
    run = kept[2]
    state = read_snapshot(run.folder / "guesses").tensors
    truth = torch.as_tensor(make_scenes("train", 60).truth)
    (axes,) = pseudo_labels(kept).axes
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert set(lines) == {"em + apl: guessed absent", "em + apl: guessed present"}
    for what, sign in (("absent", -1), ("present", 1)):
        since = state[f"{what}.since"]
        right = (truth[since > 0] == sign).double().mean()
        line = lines[f"em + apl: guessed {what}"]
        assert np.allclose(line.get_xdata(), [2])
        assert np.allclose(line.get_ydata(), [100 * right])
    assert list(guess_tables(run)) == ["absent", "present"]


def test_runs_that_guess_nothing_are_refused(kept: list[Result]) -> None:
    with pytest.raises(DataError, match="guessed labels"):
        pseudo_labels(kept[:2])
    with pytest.raises(DataError, match="guessed no labels"):
        guess_tables(kept[0])
