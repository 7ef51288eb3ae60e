"""ROLE: how estimates start, what they and the network learn, and LinearInit as a first stage."""

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
from pluralis.method import Batch, Clock, Setup
from pluralis.methods.role import Role
from pluralis.models import create_model
from tests.toys import plan, scenes, stopped_at

ROWS, CLASSES = 200, 5
DENSE = np.random.default_rng(0).choice([-1, 0, 1], size=(ROWS, CLASSES), p=[0.1, 0.6, 0.3]).astype(np.int8)
LABELS = Labels.from_dense(DENSE)


def bare(**params: float) -> Role:
    """A method whose network gives back its input as logits."""
    torch.manual_seed(0)
    return Role(Setup(nn.Identity, CLASSES, LABELS), **params)  # type: ignore[arg-type]


def over_scenes(labels: Labels, seed: int = 0, **params: float) -> Role:
    torch.manual_seed(seed)
    return Role(Setup(lambda: create_model("tiny", 10, dropout=0.1), 10, labels), **params)  # type: ignore[arg-type]


def test_where_the_estimates_start() -> None:
    start = bare().estimates.detach().double().sigmoid().numpy()
    np.testing.assert_allclose(start[DENSE > 0], 0.995, rtol=1e-6)
    np.testing.assert_allclose(start[DENSE < 0], 0.005, rtol=1e-5)
    unknown = start[DENSE == 0]
    assert 0.4 <= unknown.min() < 0.41
    assert 0.59 < unknown.max() <= 0.6
    logits = np.log(unknown / (1 - unknown))
    bound = np.log(0.6 / 0.4)
    assert abs(logits.mean()) < 0.05
    assert logits.std() == pytest.approx(2 * bound / np.sqrt(12), rel=0.05), "uniform in the logit"


def formula(f, phi, y, f_constant, phi_constant, k):
    """Value in complex numbers, so that an imaginary step gives the derivative; constants are passed apart."""

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    def known(p):
        return -np.select([y > 0, y < 0], [np.log(p), np.log(1 - p)], 0 * p).mean()

    def cross(p, target):
        return -(target * np.log(p) + (1 - target) * np.log(1 - p)).mean()

    def count(p):
        return ((p.sum(1).mean() - k) / p.shape[1]) ** 2

    p, g = sigmoid(f), sigmoid(phi)
    total = known(p) + known(g) + cross(p, sigmoid(phi_constant)) + cross(g, sigmoid(f_constant)) + count(p) + count(g)
    return total / 2


@pytest.mark.parametrize("rows", [[3], [5, 190, 7, 20]])
def test_value_and_gradients(rows: list[int]) -> None:
    method = bare(k=2.0)
    z = torch.randn(len(rows), CLASSES, requires_grad=True)
    terms = method(Batch((z,), torch.from_numpy(DENSE[rows]), torch.tensor(rows)), Clock())
    sum(terms.values()).backward()
    f, phi = z.detach().double().numpy(), method.estimates.detach().double().numpy()[rows]
    expected = formula(f, phi, DENSE[rows], f, phi, 2.0)
    assert sum(terms.values()).item() == pytest.approx(expected, rel=1e-5)
    for i in range(len(rows)):
        for c in range(CLASSES):
            step = np.zeros_like(f, dtype=complex)
            step[i, c] = 1e-30j
            by_f = formula(f + step, phi, DENSE[rows], f, phi, 2.0).imag / 1e-30
            by_phi = formula(f, phi + step, DENSE[rows], f, phi, 2.0).imag / 1e-30
            assert z.grad[i, c].item() == pytest.approx(by_f, rel=1e-4, abs=1e-7)
            assert method.estimates.grad[rows[i], c].item() == pytest.approx(by_phi, rel=1e-4, abs=1e-7)
    others = [r for r in range(ROWS) if r not in rows]
    assert not method.estimates.grad[others].any()


def test_extreme_logits_are_finite() -> None:
    method = bare()
    for size in (1e4, -1e4):
        with torch.no_grad():
            method.estimates.fill_(-size)
        for dtype in (torch.float32, torch.bfloat16):
            z = torch.full((1, CLASSES), size, dtype=dtype, requires_grad=True)
            terms = method(Batch((z,), torch.from_numpy(DENSE[:1]), torch.arange(1)), Clock())
            sum(terms.values()).backward()
            assert all(term.isfinite() for term in terms.values())
            assert z.grad.isfinite().all()
    assert method.estimates.grad.isfinite().all()


def test_the_estimates_learn_at_their_own_rate_and_do_not_decay() -> None:
    data = scenes(8)
    moves = []
    for factor in (1.0, 10.0):
        method = over_scenes(data.labels, estimator_lr=factor)
        before = method.estimates.detach().clone()
        stage = plan(epochs=1, optimizer="sgd", lr=1.0, schedule="constant", weight_decay=0.5, augment="none")
        fit(method, data, stage)
        moves.append(method.estimates.detach() - before)
    torch.testing.assert_close(moves[1], 10 * moves[0], rtol=1e-3, atol=1e-5)
    assert moves[0].abs().max() < 0.1, "half of the logits would be more"


def test_linear_init_comes_first_with_a_frozen_backbone_and_carries_the_estimates_over() -> None:
    data = scenes(16)
    method = over_scenes(data.labels, linear_epochs=2)
    first, second = method.stages(plan(epochs=1, schedule_epochs=7))
    assert (first.epochs, first.freeze, first.augment, first.schedule_epochs) == (2, -1, "none", 0)
    assert second == plan(epochs=1, schedule_epochs=7)
    rising = method.stages(plan(epochs=40, warmup=8.0))
    assert [stage.warmup for stage in rising] == [0.4, 8.0], "a stage of 2 epochs would never reach its rate"
    assert method.stages(plan(epochs=5, schedule_epochs=80, warmup=16.0))[0].warmup == 0.4
    assert over_scenes(data.labels).stages(plan()) == [plan()]

    seen = {}

    def watch(clock: Clock, steps: int, figures: dict[str, float]) -> None:
        if figures and clock.stage == 0:
            seen.update({k: v.clone() for k, v in method.state_dict().items()})

    start = {k: v.clone() for k, v in method.state_dict().items()}
    result = fit(method, data, plan(epochs=1), report=watch)
    moved = {k for k, v in seen.items() if not torch.equal(v, start[k])}
    assert moved == {"estimates", "net.head.fc.weight", "net.head.fc.bias"}
    end = method.state_dict()
    assert any(not torch.equal(end[k], seen[k]) for k in end if k.startswith("net.backbone"))
    assert (end["estimates"] - seen["estimates"]).abs().max() < 0.1, "not started afresh"
    assert [epoch["stage"] for epoch in result.history] == [0, 0, 1]
    assert "estimates" not in method.weights()


def test_a_stopped_run_goes_on_exactly(tmp_path: Path) -> None:
    data = scenes(16)
    whole = over_scenes(data.labels, linear_epochs=1)
    expected = fit(whole, data, plan(ema=0.8), seed=3)
    for steps in (1, 3):
        store = tmp_path / str(steps)
        cut = over_scenes(data.labels, linear_epochs=1)
        with pytest.raises(Interrupted):
            fit(cut, data, plan(ema=0.8), seed=3, store=Store(store), should_stop=stopped_at(steps))
        again = over_scenes(data.labels, seed=9, linear_epochs=1)
        found = fit(again, data, plan(ema=0.8), seed=3, store=Store(store))
        assert state_hash(again.state_dict()) == state_hash(whole.state_dict())
        assert found.history == expected.history


def test_wrong_parameters_are_named() -> None:
    for wrong in ({"k": -1.0}, {"linear_epochs": 1.5}, {"estimator_lr": -1.0}):
        with pytest.raises(RecipeError, match=f"role: {next(iter(wrong))}"):
            bare(**wrong)
