"""A learned rate says how surely it is known, in every history."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pluralis.checkpoint import Store
from pluralis.engine import fit
from pluralis.errors import Interrupted
from pluralis.labels import Labels
from pluralis.losses import Selection, create_loss, estimate_rate
from pluralis.losses.rate_tally import RateTally
from pluralis.method import LossMethod
from pluralis.models import create_model
from tests.toys import plan, scenes


def example(rows: int = 60, classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, classes, generator=g) * 3
    labels = torch.randint(-1, 2, (rows, classes), generator=g, dtype=torch.int8)
    labels[: rows // 4] = 0  # nothing is written there
    return z, labels


def reference(z: Tensor, y: Tensor, rate: np.ndarray, absent: bool) -> np.ndarray:
    p, y = 1 / (1 + np.exp(-z.double().numpy())), y.numpy()
    if not absent:
        p, y = p[(y > 0).any(1)], y[(y > 0).any(1)]
    slope = np.where(y > 0, 1 / rate, np.where(y == 0, -p / (1 - rate * p), 0))
    second = np.where(y > 0, 1 / rate**2, np.where(y == 0, (p / (1 - rate * p)) ** 2, 0))
    if len(rate) == 1:
        return np.sqrt([(slope.sum(1) ** 2).sum()]) / second.sum()
    return np.sqrt((slope**2).sum(0)) / second.sum(0)


@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("rates", [[0.3], [0.1, 0.3, 0.6, 0.9]])
def test_the_error_is_that_of_the_formula_over_all_batches(rates: list[float], absent: bool) -> None:
    z, y = example()
    tally = RateTally(len(rates))
    tally.add(*example(seed=5), torch.tensor(rates), absent, epoch=3)  # an earlier epoch is forgotten
    for part in torch.arange(60).split(17):
        tally.add(z[part], y[part], torch.tensor(rates), absent, epoch=4)
    np.testing.assert_allclose(tally.errors().numpy(), reference(z, y, np.float32(rates).astype(float), absent), 1e-9)


def test_at_its_maximum_it_is_the_error_of_estimate_rate() -> None:
    z, y = example()
    found = estimate_rate(z, y)
    tally = RateTally(1)
    tally.add(z, y, found.rate.reshape(1), False, 0)
    assert tally.errors().item() == pytest.approx(found.error.item(), rel=1e-6)


def test_a_fit_puts_the_rate_and_its_error_into_the_history() -> None:
    torch.manual_seed(0)
    data = scenes(24)
    method = LossMethod(create_model("tiny", 10), Selection(mechanism="rate"))
    history = fit(method, data, plan()).history
    assert history[-1]["rate"] == pytest.approx(method.loss.rates().item())  # type: ignore[operator]
    assert all(0 < epoch["rate error"] < 1 for epoch in history)
    assert history[0]["rate error"] != history[1]["rate error"]


def test_rates_by_class_are_told_as_their_mean() -> None:
    loss = create_loss("selection", mechanism="rate", rate="class")
    loss.start(Labels.from_lists([[0], [1]], 4))
    assert loss.figures() == {"rate": 0.5}
    z, y = example()
    z, y = z.clone(), y.clone()
    z[:, 3], y[:, 3] = -1e4, -1  # of this class nothing can be said
    loss(z, y)
    errors = loss.get_submodule("tally").errors()[:3]  # type: ignore[operator]
    figures = loss.figures()
    assert figures["rate error"] == pytest.approx(errors.square().sum().sqrt().item() / 3)
    before = loss.figures()
    loss.eval()
    loss(z[:10], y[:10], epoch=7)
    assert loss.figures() == before


@pytest.mark.parametrize("scale", [1e4, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_figures_are_finite(scale: float, dtype: torch.dtype) -> None:
    loss = Selection(mechanism="rate")
    z, y = example()
    for rows in (slice(0, 60), slice(30, 31), slice(0, 15)):
        loss((scale * z[rows].sign()).to(dtype), y[rows])
        assert all(np.isfinite(value) for value in loss.figures().values())


def test_the_tally_is_saved_but_not_part_of_a_model() -> None:
    method = LossMethod(create_model("tiny", 4), Selection(mechanism="rate"))
    assert "loss.tally.sums" in method.state_dict()
    assert not any("tally" in key for key in method.weights())
    assert LossMethod(create_model("tiny", 4), create_loss("an")).figures() == {}


def test_a_run_that_stops_within_an_epoch_ends_with_the_same_history(tmp_path: Path) -> None:
    def once(folder: str, stop_at: int) -> list[dict[str, float]]:
        torch.manual_seed(0)
        method = LossMethod(create_model("tiny", 10), Selection(mechanism="rate"))
        steps = iter(range(1000))
        store = Store(tmp_path / folder)
        return fit(method, scenes(24), plan(ema=0.9), store=store, should_stop=lambda: next(steps) == stop_at).history

    whole = once("whole", -1)
    with pytest.raises(Interrupted):
        once("parts", 4)  # in the middle of the second epoch
    assert once("parts", -1) == whole
