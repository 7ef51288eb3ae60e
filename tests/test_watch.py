"""What is recorded of training rows: formulas against references, and that looking has no influence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pluralis.checkpoint import state_hash
from pluralis.data.scenes import make_scenes
from pluralis.engine import fit
from pluralis.evaluate import predict
from pluralis.labels import Labels
from pluralis.watch import TrainingRows, kl_discrepancy, positive_loss, unannotated, wasserstein
from tests.toys import loss_method, plan, scenes


def test_kl_discrepancy_is_the_papers_sum_over_batches_and_classes() -> None:
    draw = np.random.default_rng(0)
    p, labels = draw.uniform(0.01, 0.99, (50, 4)), draw.choice([1, -1, 0], (50, 4))
    labels[:20, 2] = -1  # two batches without a present label of this class
    terms = []
    for start in range(0, 50, 10):
        for c in range(4):
            here, y = p[start : start + 10, c], labels[start : start + 10, c]
            if (y > 0).any() and (y < 0).any():
                present, absent = here[y > 0].mean(), here[y < 0].mean()
                terms.append(present * math.log(present / absent))
    assert len(terms) == 18
    assert kl_discrepancy(p, labels, 10) == pytest.approx(sum(terms) / len(terms), rel=1e-12)


def test_kl_discrepancy_of_nothing_and_of_zeros() -> None:
    assert math.isnan(kl_discrepancy(np.zeros((0, 3)), np.zeros((0, 3)), 8))
    assert math.isnan(kl_discrepancy(np.full((4, 1), 0.5), np.ones((4, 1)), 2))
    assert math.isfinite(kl_discrepancy([[0.9], [0.0]], [[1], [-1]], 2))
    assert kl_discrepancy([[0.0], [0.5]], [[1], [-1]], 2) == 0  # 0 · log 0


def test_wasserstein_is_the_area_between_the_distributions() -> None:
    draw = np.random.default_rng(1)
    one, other = draw.beta(2, 5, 37), draw.beta(5, 2, 80)
    grid = np.linspace(0, 1, 200_001)
    areas = [np.searchsorted(np.sort(x), grid, side="right") / len(x) for x in (one, other)]
    reference = np.trapezoid(np.abs(areas[0] - areas[1]), grid)
    assert wasserstein(one, other) == pytest.approx(reference, abs=1e-5)
    assert wasserstein(np.full(3, 0.25), np.full(5, 0.25)) == 0
    assert math.isnan(wasserstein([], other))


def test_unannotated_leaves_out_what_was_written_and_what_nobody_knows() -> None:
    p = [[0.1, 0.2, 0.3, 0.4, 0.5]]
    present, absent = unannotated(p, given=[[1, -1, 0, 0, 0]], truth=[[1, -1, 1, -1, 0]])
    assert (present.tolist(), absent.tolist()) == ([0.3], [0.4])


def test_positive_loss_counts_written_labels_alone() -> None:
    z = torch.tensor([[2.0, -9.0], [-50.0, 3.0]])
    assert positive_loss(z, [[1, 0], [1, -1]]) == pytest.approx((math.log1p(math.exp(-2)) + 50) / 2)
    assert math.isnan(positive_loss(z, np.zeros((2, 2))))


def test_training_rows_are_recorded_after_each_epoch_and_nothing_else_changes() -> None:
    data, made = scenes(24), make_scenes("train", 24)
    truth = Labels.from_dense(made.truth, made.classes)
    plain, watched = loss_method(), loss_method()
    fit(plain, data, plan())
    result = fit(watched, data, plan(), watch={"train": TrainingRows(data, truth, 8, count=12)})
    assert state_hash(watched.state_dict()) == state_hash(plain.state_dict())
    rows = np.linspace(0, 23, 12).astype(int)
    logits = predict(watched, data)[rows].double()
    given, whole = data.labels.dense(rows), truth.dense(rows)
    p = logits.sigmoid().numpy()
    last = result.history[-1]
    assert last["train positive loss"] == pytest.approx(-np.log(p[given > 0]).mean(), rel=1e-9)
    assert last["train KL discrepancy"] == pytest.approx(kl_discrepancy(p, whole, 8), rel=1e-9)
    both = p[(given == 0) & (whole > 0)], p[(given == 0) & (whole < 0)]
    assert last["train Wasserstein"] == pytest.approx(wasserstein(*both), rel=1e-9)
    assert last["train p of annotated positives"] == pytest.approx(p[given > 0].mean(), rel=1e-9)
    assert last["train p of unannotated positives"] == pytest.approx(both[0].mean(), rel=1e-9)
    sizes = logits.abs().numpy()
    for what, sign in (("positives", 1), ("negatives", -1)):
        size = sizes[(given == 0) & (whole == sign)].mean()
        assert last[f"train |z| of unannotated {what}"] == pytest.approx(size, rel=1e-9)
    assert len(result.history) == 2
    assert last["train positive loss"] != result.history[0]["train positive loss"]


def test_what_cannot_be_told_is_not_recorded() -> None:
    data = scenes(16)  # single positives: no absent label is known without the truth
    found = TrainingRows(data, None, 8, count=100)(loss_method())
    assert set(found) == {"positive loss", "p of annotated positives"}


def test_predictions_of_some_rows_are_those_rows_of_all() -> None:
    method, data = loss_method(), scenes(20)
    rows = torch.tensor([7, 3, 19])
    torch.testing.assert_close(predict(method, data, rows=rows), predict(method, data)[rows])
