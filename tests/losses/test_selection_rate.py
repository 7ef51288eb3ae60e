"""Rates of writing: learned while training, and estimated from predictions."""

from __future__ import annotations

import math

import pytest
import torch

from pluralis.errors import DataError, RecipeError
from pluralis.labels import Labels
from pluralis.losses import create_loss, estimate_rate, selection_posterior
from pluralis.losses.functional import selection
from pluralis.method import Setup
from pluralis.methods import create_method
from pluralis.models import create_model
from tests.losses.check_loss import example, gradient

LABELS = Labels.from_lists([[0], [0], [1], [0]], 3)


def simulated(rows: int, rate: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of classes that can mostly be told apart, and labels that were written at the rate."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, len(rate), generator=g, dtype=torch.float64) * 4 - 2
    present = torch.rand(z.shape, generator=g, dtype=torch.float64) < z.sigmoid()
    written = present & (torch.rand(z.shape, generator=g, dtype=torch.float64) < rate)
    return z, written.to(torch.int8)


def test_the_rate_is_found_within_its_error():
    """Over 40 draws the error bar of two standard errors should miss about twice."""
    truth = torch.tensor([0.3])
    draws = [estimate_rate(*simulated(300, truth.expand(4), seed), unlabelled="absent") for seed in range(40)]
    misses = sum(abs(found.rate.item() - 0.3) > 2 * found.error.item() for found in draws)
    assert misses <= 6
    spread = torch.stack([found.rate for found in draws]).std().item()
    assert draws[0].error.item() == pytest.approx(spread, rel=0.35)
    assert draws[0].rate.shape == ()


def test_a_rate_for_each_class():
    truth = torch.tensor([0.1, 0.35, 0.6, 0.9], dtype=torch.float64)
    found = estimate_rate(*simulated(4000, truth, 3), per_class=True, unlabelled="absent")
    assert ((found.rate - truth).abs() < 2 * found.error).all()
    assert (found.error < 0.03).all()


def test_the_estimate_is_the_maximum():
    z, labels = simulated(200, torch.tensor([0.4, 0.4]), 5)
    labels[:40, 0] = -1
    found = estimate_rate(z, labels)
    rows = (labels > 0).any(1)
    p, y = z[rows].sigmoid(), labels[rows]

    def likelihood(rate: float) -> float:
        return float(((y > 0) * math.log(rate)).sum() + ((y == 0) * torch.log1p(-rate * p)).sum())

    best = likelihood(found.rate.item())
    assert best > max(likelihood(found.rate.item() + step) for step in (-1e-4, 1e-4))


def test_edges_of_the_estimate():
    sure = torch.tensor([[50.0, -50.0, 50.0, 0.0]]).repeat(10, 1)
    labels = torch.zeros(10, 4)
    labels[:, 0] = 1
    labels[:, 3] = -1
    found = estimate_rate(sure, labels, per_class=True)
    assert found.rate.tolist() == pytest.approx([1, 0, 0, 0], abs=1e-9)
    assert found.error[2].item() == pytest.approx(0.1)  # ten chances, none taken
    assert found.error[3].isnan()  # nothing is unknown and nothing was written
    assert found.error[:3].isfinite().all()
    with pytest.raises(DataError, match="no row has a written label"):
        estimate_rate(sure, torch.zeros(10, 4))
    with pytest.raises(RecipeError, match="unlabelled is 'zero'"):
        estimate_rate(sure, labels, unlabelled="zero")


def fitted(x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Slope, bias and log-odds of the rate at the maximum, and the covariance from the likelihood's curvature."""
    loss = create_loss("selection", mechanism="rate", unlabelled="absent").double()
    line = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)

    def total() -> torch.Tensor:
        return loss((line[0] * x + line[1])[:, None], labels) * len(x)

    optimizer = torch.optim.LBFGS(
        [line, loss.rate_logit], max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-9
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = total()
        value.backward()
        return value

    optimizer.step(closure)
    parameters = [line, loss.rate_logit]

    def slopes() -> torch.Tensor:
        found = torch.autograd.grad(total(), parameters)
        return torch.cat([found[0], found[1] / 100])  # by the log-odds of the rate

    columns = []
    for i in range(3):
        parameter, at, step = (line, i, 1e-4) if i < 2 else (loss.rate_logit, 0, 1e-6)
        sides = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter[at] += sign * step
            sides.append(slopes())
            with torch.no_grad():
                parameter[at] -= sign * step
        columns.append((sides[0] - sides[1]) / (2 * (step if i < 2 else 1e-4)))
    found = torch.cat([line.detach(), loss.rate_logit.detach() * 100])
    return found, torch.linalg.inv(torch.stack(columns))


def test_the_loss_learns_the_rate_together_with_the_model():
    """Where the class can be told apart the likelihood finds both, and its curvature knows how well."""
    g = torch.Generator().manual_seed(2)
    x = torch.randn(3000, generator=g, dtype=torch.float64) * 2
    present = torch.rand(3000, generator=g, dtype=torch.float64) < (3 * x - 1).sigmoid()
    labels = (present & (torch.rand(3000, generator=g) < 0.35)).to(torch.int8)[:, None]
    found, covariance = fitted(x, labels)
    error = covariance[2, 2].sqrt().item()
    assert abs(found[2].item() - math.log(0.35 / 0.65)) < 2 * error
    assert error < 0.15
    assert abs(found[0].item() - 3) < 2 * covariance[0, 0].sqrt().item()


def test_a_constant_cannot_be_told_from_the_rate():
    """If p is the same for all images only ρp can be known."""
    labels = (torch.arange(100)[:, None] < 20).to(torch.int8)
    loss = create_loss("selection", mechanism="rate", unlabelled="absent").double()
    values = []
    for p, rate in ((0.8, 0.3), (0.4, 0.6), (0.24, 1 - 1e-9)):
        with torch.no_grad():
            loss.rate_logit.fill_(math.log(rate / (1 - rate)) / 100)
        values.append(loss(torch.full((100, 1), math.log(p / (1 - p)), dtype=torch.float64), labels).item())
    assert values == pytest.approx([values[0]] * 3, rel=1e-7)


@pytest.mark.parametrize("rate", [None, "class"])
@pytest.mark.parametrize("unlabelled", ["skip", "absent"])
def test_gradients_of_a_learned_rate(rate, unlabelled):
    logits, labels = example()
    labels[:3] = 0
    loss = create_loss("selection", mechanism="rate", rate=rate, unlabelled=unlabelled)
    loss.start(Labels.from_lists([[0]], 7))
    loss.double()
    with torch.no_grad():
        loss.rate_logit += torch.linspace(-0.01, 0.01, len(loss.rate_logit), dtype=torch.float64)
    _, slope = gradient(loss, logits, labels)
    # As with a fixed rate, whose value lacks Σ log ρ alone
    fixed = create_loss("selection", mechanism="rate", rate=0.5, unlabelled=unlabelled)
    if rate is None:
        loss_at_half = create_loss("selection", mechanism="rate", unlabelled=unlabelled).double()
        value, plain = loss_at_half(logits, labels), fixed(logits, labels)
        count = (labels > 0).sum().item()
        assert value.item() == pytest.approx(plain.item() + count * math.log(2) / labels.numel(), rel=1e-12)
    for at in ((0, 1), (5, 3), (9, 6)):
        sides = []
        for step in (1e-6, -1e-6):
            moved = logits.clone()
            moved[at] += step
            sides.append(loss(moved, labels).item())
        assert slope[at].item() == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-5, abs=1e-10)
    for i in range(len(loss.rate_logit)):
        sides = []
        for step in (1e-7, -1e-7):
            with torch.no_grad():
                loss.rate_logit[i] += step
                sides.append(loss(logits, labels).item())
                loss.rate_logit[i] -= step
        expected = (sides[0] - sides[1]) / 2e-7
        assert loss.rate_logit.grad[i].item() == pytest.approx(expected, rel=1e-5, abs=1e-8)


def test_extreme_rates_are_finite():
    logits, labels = (t.float() if t.is_floating_point() else t for t in example())
    loss = create_loss("selection", mechanism="rate")
    for value in (-1e3, 1e3):
        with torch.no_grad():
            loss.rate_logit.fill_(value)
        loss.rate_logit.grad = None
        found, slope = gradient(loss, logits * 1e3, labels)
        assert found.isfinite()
        assert slope.isfinite().all()
        assert loss.rate_logit.grad.isfinite().all()


@pytest.mark.parametrize("rate", [torch.tensor(0.4), torch.full((4,), 0.4)], ids=["one", "each"])
def test_a_rate_may_lie_on_another_device(rate):
    z, y = torch.zeros(3, 4, device="meta"), torch.zeros(3, 4, device="meta")
    assert selection(z, y, mechanism="rate", rate=rate).device == z.device
    assert selection_posterior(z, y, mechanism="rate", rate=rate).device == z.device


def test_the_method_starts_trains_and_reads_back():
    setup = Setup(lambda: create_model("tiny", 3), 3, LABELS)
    assert create_method("selection", setup).start_bias == "log-odds"
    assert not list(create_loss("selection").parameters())
    trained = create_method("selection", setup, {"mechanism": "rate", "rate": "class"})
    assert "loss.rate_logit" in {name for name, p in trained.named_parameters() if p.requires_grad}
    with torch.no_grad():
        trained.loss.rate_logit += torch.tensor([0.0, 0.01, -0.01])
    fresh = create_method("selection", Setup(setup.make_net, 3), {"mechanism": "rate", "rate": "class"})
    assert not fresh.load_state_dict(trained.state_dict()).missing_keys
    assert fresh.loss.rates().tolist() == pytest.approx([0.5, 0.7311, 0.2689], abs=1e-4)
    logits, labels = torch.randn(4, 3), torch.from_numpy(LABELS.dense())
    assert trained.loss(logits, labels) == fresh.loss(logits, labels)
    assert create_loss("selection", mechanism="rate", rate=0.25).rates().tolist() == [0.25]


def test_steps_that_suit_weights_suit_the_rate():
    """With Adam at 1e-4 some hundred steps reach what the labels say."""
    z, labels = simulated(2000, torch.tensor([0.8] * 4), 7)
    loss = create_loss("selection", mechanism="rate", unlabelled="absent").double()
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-4)
    for _ in range(400):
        optimizer.zero_grad()
        loss(z, labels).backward()
        optimizer.step()
    best = estimate_rate(z, labels, unlabelled="absent")
    assert loss.rates().item() == pytest.approx(best.rate.item(), abs=0.02)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"mechanism": "two"}, "mechanism is 'two'"),
        ({"unlabelled": "zero"}, "unlabelled is 'zero'"),
        ({"a": 0.0}, "loss selection: a is 0.0.*above 0"),
        ({"rate": 0.5}, 'rate is 0.5.*mechanism = "rate"'),
        ({"mechanism": "rate", "a": 2.0}, 'a is 2.0.*mechanism = "one"'),
        ({"mechanism": "rate", "rate": 1.5}, "rate is 1.5.*at most 1"),
        ({"mechanism": "rate", "rate": "image"}, "rate is 'image'; give a number"),
    ],
)
def test_bad_parameters_are_named(params, message):
    with pytest.raises(RecipeError, match=message):
        create_loss("selection", **params)


def test_rates_must_fit():
    loss = create_loss("selection", mechanism="rate", rate="class")
    with pytest.raises(RecipeError, match="0 rates for 7 classes.*start"):
        loss(*example())
    with pytest.raises(RecipeError, match="there is no rate"):
        create_loss("selection").rates()
