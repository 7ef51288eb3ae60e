"""Expected negatives: how many, which ones, from which average, and the loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pluralis.checkpoint import Store, state_hash
from pluralis.engine import fit
from pluralis.errors import Interrupted, RecipeError
from pluralis.labels import Labels
from pluralis.losses import functional
from pluralis.method import Batch, Clock, Setup
from pluralis.methods.en import ExpectedNegatives, expected_negatives
from pluralis.models import create_model
from tests.toys import plan, scenes, stopped_at

ROWS, CLASSES = 40, 4
DENSE = np.random.default_rng(0).choice([-1, 0, 1], size=(ROWS, CLASSES), p=[0.1, 0.6, 0.3]).astype(np.int8)
DENSE[:, 3] = np.minimum(DENSE[:, 3], 0)  # a class without positives
LABELS = Labels.from_dense(DENSE)


def bare(**params: float) -> ExpectedNegatives:
    """A method whose network gives back its input as logits."""
    return ExpectedNegatives(Setup(nn.Identity, CLASSES, LABELS), **params)  # type: ignore[arg-type]


def batch_of(rows: range, epoch: int) -> Batch:
    logits = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(epoch))[rows.start : rows.stop]
    return Batch((logits,), torch.from_numpy(DENSE[rows.start : rows.stop].copy()), torch.arange(rows.start, rows.stop))


def never() -> torch.Tensor:
    raise AssertionError("no prediction is needed")


def test_numbers_of_expected_negatives() -> None:
    """Ten rows with one label each, six of class 0 and four of class 1; k = 1.5 makes nine and six of them."""
    single = Labels.from_lists([[0]] * 6 + [[1]] * 4, 3)
    assert expected_negatives(single.summary(), 1.5).tolist() == [10 - 9, 10 - 6, 10]
    assert expected_negatives(single.summary(), 1.0).tolist() == [10 - 6, 10 - 4, 10]
    assert expected_negatives(single.summary(), 0.1).tolist() == [10 - 6, 10 - 4, 10], "never less than was written"
    assert expected_negatives(single.summary(), 9.0).tolist() == [0, 0, 10]
    absent = Labels.from_lists([[0]] * 6 + [[1]] * 4, 3, negatives=[[1]] * 2 + [[]] * 8)
    assert expected_negatives(absent.summary(), 1.5).tolist() == [1, 10 - 6 - 2, 10], "verified ones count among them"
    assert expected_negatives(Labels.from_lists([[], []], 2).summary(), 1.5).tolist() == [2, 2]


def test_the_first_epoch_assumes_negative() -> None:
    method, batch = bare(), batch_of(range(ROWS), 0)
    method.start_epoch(Clock(epochs=2), never)
    expected = functional.an(batch.views[0], batch.labels)
    torch.testing.assert_close(method(batch, Clock(epochs=2))["loss"], expected)
    assert method.figures() == {"expected negatives": (DENSE == 0).sum()}, "all unknown labels are, and so it is told"


def test_averages_negatives_and_loss_over_three_epochs() -> None:
    """Against a float64 loop; the moving average is rounded to float16 at every step, as the state is."""
    method = bare(k=1.8, momentum=0.7)
    counts = expected_negatives(LABELS.summary(), 1.8)
    average, negative = np.zeros((ROWS, CLASSES)), DENSE == 0
    for epoch in range(3):
        method.start_epoch(Clock(epoch=epoch, epochs=3), never)
        if epoch:
            negative = np.zeros((ROWS, CLASSES), bool)
            for c in range(CLASSES):
                unknown = [r for r in np.argsort(average[:, c], kind="stable") if DENSE[r, c] == 0]
                negative[unknown[: counts[c]], c] = True
            np.testing.assert_array_equal(method.negative.numpy(), negative)
        for start in range(0, ROWS, 10):
            rows = range(start, start + 10)
            batch = batch_of(rows, epoch)
            before = batch.labels.clone()
            found = method(batch, Clock(epoch=epoch, epochs=3))["loss"].item()
            z, here = batch.views[0].double().numpy(), slice(start, start + 10)
            p = 1 / (1 + np.exp(-z))
            absent = negative[here] | (DENSE[here] < 0)
            expected = -np.select([DENSE[here] > 0, absent], [np.log(p), np.log(1 - p)], 0).mean()
            assert found == pytest.approx(expected, rel=1e-5)
            mixed = 0.7 * average[here] + 0.3 * p if epoch else p
            average[here] = method.score[here].double().numpy()
            np.testing.assert_allclose(average[here], mixed, rtol=1e-3)
            assert torch.equal(batch.labels, before)
    assert method.figures() == {"expected negatives": negative.sum()}
    assert 0 < negative.sum() < (DENSE == 0).sum()


def test_state_size_extremes_and_parameters() -> None:
    method = bare()
    assert sum(v.nbytes for v in method.state_dict().values()) <= 3 * ROWS * CLASSES
    for size in (1e4, -1e4):
        for dtype in (torch.float32, torch.bfloat16):
            logits = torch.full((1, CLASSES), size, dtype=dtype, requires_grad=True)
            row = batch_of(range(1), 0)
            method(Batch((logits,), row.labels, row.index), Clock(epoch=1, epochs=2))["loss"].backward()
            assert torch.isfinite(logits.grad).all()
    assert method.score.isfinite().all()
    for wrong in ({"k": 0.0}, {"momentum": 1.0}):
        with pytest.raises(RecipeError, match=f"en: {next(iter(wrong))}"):
            bare(**wrong)


def test_a_stand_in_row_of_weight_zero_leaves_no_trace() -> None:
    method, batch = bare(), batch_of(range(1), 0)
    method(Batch(batch.views, batch.labels, batch.index, weight=0.0), Clock(epochs=2))
    assert not method.score.any()


def test_a_stopped_run_goes_on_exactly(tmp_path: Path) -> None:
    data = scenes(24)

    def make(seed: int) -> ExpectedNegatives:
        torch.manual_seed(seed)
        return ExpectedNegatives(Setup(lambda: create_model("tiny", 10, dropout=0.1), 10, data.labels))

    whole = make(0)
    expected = fit(whole, data, plan(epochs=3), seed=3)
    with pytest.raises(Interrupted):
        fit(make(0), data, plan(epochs=3), seed=3, store=Store(tmp_path), should_stop=stopped_at(4))
    again = make(9)
    found = fit(again, data, plan(epochs=3), seed=3, store=Store(tmp_path))
    assert state_hash(again.state_dict()) == state_hash(whole.state_dict())
    assert found.history == expected.history
