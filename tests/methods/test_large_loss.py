"""LL-Cp: which labels are corrected, and that they stay corrected."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pluralis.checkpoint import Store, state_hash
from pluralis.engine import fit
from pluralis.errors import Interrupted, RecipeError
from pluralis.labels import Labels
from pluralis.losses import functional
from pluralis.method import Batch, Clock, Setup
from pluralis.methods import create_method
from pluralis.methods.large_loss import LargeLossCp
from pluralis.models import create_model
from tests.toys import plan, scenes, stopped_at

ROWS, CLASSES = 12, 6
LABELS = Labels.from_dense(
    np.random.default_rng(0).choice([-1, 0, 1], size=(ROWS, CLASSES), p=[0.2, 0.6, 0.2]).astype(np.int8)
)


def bare(delta: float) -> LargeLossCp:
    """A method whose network gives back its input as logits."""
    return LargeLossCp(Setup(nn.Identity, CLASSES, LABELS), delta)  # type: ignore[arg-type]


def batch_of(rows: list[int], seed: int) -> Batch:
    logits = torch.randn(len(rows), CLASSES, generator=torch.Generator().manual_seed(seed))
    return Batch((logits,), torch.from_numpy(LABELS.dense(rows)), torch.tensor(rows))


def cross_entropy(z: Tensor, present: np.ndarray) -> np.ndarray:
    p = 1 / (1 + np.exp(-z.double().numpy()))
    return np.where(present, -np.log(p), -np.log(1 - p))


def test_the_first_epoch_assumes_negative_and_corrects_nothing() -> None:
    method, batch = bare(0.5), batch_of(list(range(ROWS)), 0)
    assert torch.equal(method(batch, Clock(epochs=2))["loss"], functional.an(batch.views[0], batch.labels))
    assert method.figures() == {"corrected labels": 0}


@pytest.mark.parametrize("delta", [0.03, 0.1, 0.25])
def test_the_largest_losses_of_unknown_labels_become_present_for_good(delta: float) -> None:
    """Two epochs of batches of three, against a plain loop over entries in float64."""
    method = bare(delta)
    given = LABELS.dense()
    corrected = np.zeros((ROWS, CLASSES), bool)
    for epoch in (1, 2):
        for start in range(0, ROWS, 3):
            rows = list(range(start, start + 3))
            batch = batch_of(rows, 10 * epoch + start)
            before = batch.labels.clone()
            present = (given[rows] > 0) | corrected[rows]
            losses = cross_entropy(batch.views[0], present)
            unknown = [(r, c) for r in range(3) for c in range(CLASSES) if given[rows[r], c] == 0 and not present[r, c]]
            for r, c in sorted(unknown, key=lambda rc: -losses[rc])[: math.ceil(3 * CLASSES * delta)]:
                corrected[rows[r], c] = True
            expected = cross_entropy(batch.views[0], (given[rows] > 0) | corrected[rows]).mean()
            assert method(batch, Clock(epoch=epoch, epochs=3))["loss"].item() == pytest.approx(expected, rel=1e-5)
            np.testing.assert_array_equal(method.corrected.since.numpy() != 0, corrected)
            assert torch.equal(batch.labels, before)
    assert set(method.corrected.since.unique().tolist()) == {0, 2, 3}
    assert not corrected[given != 0].any()


def test_where_fewer_are_unknown_fewer_are_corrected() -> None:
    method, batch = bare(1.0), batch_of(list(range(ROWS)), 3)
    for epoch in (1, 2):
        loss = method(batch, Clock(epoch=epoch, epochs=3))["loss"]
        assert loss.isfinite()
        assert torch.equal(method.corrected.since != 0, batch.labels == 0)
    complete = Batch((torch.zeros(1, CLASSES),), torch.ones(1, CLASSES, dtype=torch.int8), torch.tensor([0]))
    known = bare(1.0)
    known(complete, Clock(epoch=1, epochs=2))
    assert not known.corrected.since.any()


@pytest.mark.parametrize(("delta", "entries", "corrected"), [(0.07, 100, 7), (0.14, 50, 7), (0.07, 101, 8)])
def test_rounding_corrects_no_label_more(delta: float, entries: int, corrected: int) -> None:
    """0.07·100 is 7.000000000000001 to a machine, and still 7."""
    labels = Labels.from_lists([[]], entries)
    method = LargeLossCp(Setup(nn.Identity, entries, labels), delta)  # type: ignore[arg-type]
    method(Batch((torch.randn(1, entries),), torch.zeros(1, entries), torch.tensor([0])), Clock(epoch=1, epochs=2))
    assert method.figures() == {"corrected labels": corrected}


def test_a_stand_in_row_of_weight_zero_is_not_corrected() -> None:
    method, batch = bare(0.5), batch_of([2], 0)
    method(Batch(batch.views, batch.labels, batch.index, weight=0.0), Clock(epoch=1, epochs=2))
    assert method.figures() == {"corrected labels": 0}


def test_without_a_share_it_is_an() -> None:
    data = scenes(16)
    runs = []
    for name, params in (("an", {}), ("ll-cp", {"delta": 0.0})):
        torch.manual_seed(0)
        method = create_method(name, Setup(lambda: create_model("tiny", 10), 10, data.labels), params)
        fit(method, data, plan())
        runs.append(state_hash(method.weights()))
    assert runs[0] == runs[1]


def test_a_stopped_run_goes_on_exactly(tmp_path: Path) -> None:
    data = scenes(24)

    def make(seed: int) -> LargeLossCp:
        torch.manual_seed(seed)
        return LargeLossCp(Setup(lambda: create_model("tiny", 10, dropout=0.1), 10, data.labels), 0.05)

    whole = make(0)
    expected = fit(whole, data, plan(epochs=3), seed=3)
    assert expected.history[-1]["corrected labels"] == 2 * 3 * math.ceil(8 * 10 * 0.05)
    with pytest.raises(Interrupted):
        fit(make(0), data, plan(epochs=3), seed=3, store=Store(tmp_path), should_stop=stopped_at(4))
    again = make(9)
    found = fit(again, data, plan(epochs=3), seed=3, store=Store(tmp_path))
    assert state_hash(again.state_dict()) == state_hash(whole.state_dict())
    assert found.history == expected.history


def test_a_wrong_share_is_named() -> None:
    with pytest.raises(RecipeError, match="ll-cp: delta"):
        bare(1.5)
