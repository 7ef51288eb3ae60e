"""Rates of writing: learned while training, and estimated from predictions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pluralis.errors import DataError, LabelError, RecipeError
from pluralis.labels import Labels
from pluralis.losses import create_loss, estimate_rate, selection_posterior
from pluralis.losses.functional import selection
from pluralis.method import Setup
from pluralis.methods import create_method
from pluralis.models import create_model
from tests.losses.check_loss import example, gradient
from tests.toys import plan

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
        [line, loss.rate_log_odds], max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-9
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = total()
        value.backward()
        return value

    optimizer.step(closure)
    parameters = [line, loss.rate_log_odds]

    def slopes() -> torch.Tensor:
        return torch.cat(torch.autograd.grad(total(), parameters))

    columns = []
    for i in range(3):
        parameter, at, step = (line, i, 1e-4) if i < 2 else (loss.rate_log_odds, 0, 1e-4)
        sides = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter[at] += sign * step
            sides.append(slopes())
            with torch.no_grad():
                parameter[at] -= sign * step
        columns.append((sides[0] - sides[1]) / (2 * step))
    found = torch.cat([line.detach(), loss.rate_log_odds.detach()])
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
            loss.rate_log_odds.fill_(math.log(rate / (1 - rate)))
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
        loss.rate_log_odds += torch.linspace(-1, 1, len(loss.rate_log_odds), dtype=torch.float64)
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
    for i in range(len(loss.rate_log_odds)):
        sides = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                loss.rate_log_odds[i] += step
                sides.append(loss(logits, labels).item())
                loss.rate_log_odds[i] -= step
        expected = (sides[0] - sides[1]) / 2e-6
        assert loss.rate_log_odds.grad[i].item() == pytest.approx(expected, rel=1e-5, abs=1e-8)


def test_extreme_rates_are_finite():
    logits, labels = (t.float() if t.is_floating_point() else t for t in example())
    loss = create_loss("selection", mechanism="rate")
    for value in (-1e3, 1e3):
        with torch.no_grad():
            loss.rate_log_odds.fill_(value)
        loss.rate_log_odds.grad = None
        found, slope = gradient(loss, logits * 1e3, labels)
        assert found.isfinite()
        assert slope.isfinite().all()
        assert loss.rate_log_odds.grad.isfinite().all()


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
    assert "loss.rate_log_odds" in {name for name, p in trained.named_parameters() if p.requires_grad}
    with torch.no_grad():
        trained.loss.rate_log_odds += torch.tensor([0.0, 1.0, -1.0])
    fresh = create_method("selection", Setup(setup.make_net, 3), {"mechanism": "rate", "rate": "class"})
    assert not fresh.load_state_dict(trained.state_dict()).missing_keys
    assert fresh.loss.rates().tolist() == pytest.approx([0.5, 0.7311, 0.2689], abs=1e-4)
    logits, labels = torch.randn(4, 3), torch.from_numpy(LABELS.dense())
    assert trained.loss(logits, labels) == fresh.loss(logits, labels)
    assert create_loss("selection", mechanism="rate", rate=0.25).rates().tolist() == [0.25]


def test_steps_that_suit_weights_suit_the_rate():
    """With Adam at 1e-4 some hundred steps in its own group reach what the labels say."""
    z, labels = simulated(2000, torch.tensor([0.8] * 4), 7)
    loss = create_loss("selection", mechanism="rate", unlabelled="absent").double()
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-4 * loss.lr_factor)
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


def own_loop(rate: float, lr: float, sgd: bool, group: bool = False, epochs: int = 14) -> float:
    """The learned rate at the end of a loop of one's own: 20 classes that a line tells apart as well as it can be."""
    g = torch.Generator().manual_seed(0)
    x, w = torch.randn(1200, 30, generator=g), torch.randn(30, 20, generator=g)
    present = torch.rand(1200, 20, generator=g) < (3 * x @ w / 30**0.5 - 3.5).sigmoid()
    labels = (present & (torch.rand(1200, 20, generator=g) < rate)).to(torch.int8)
    share = labels.float().mean(0).clamp(1e-3)
    net, loss = torch.nn.Linear(30, 20), create_loss("selection", mechanism="rate", unlabelled="absent")
    with torch.no_grad():
        net.weight.copy_(torch.randn(20, 30, generator=g) / 30)
        net.bias.copy_((share / (1 - share)).log())
    groups = [{"params": net.parameters()}, {"params": loss.parameters(), "lr": lr * (loss.lr_factor if group else 1)}]
    optimizer = torch.optim.SGD(groups, lr=lr) if sgd else torch.optim.Adam(groups, lr=lr)
    for epoch in range(epochs):
        for rows in torch.randperm(1200, generator=g).split(32):
            optimizer.zero_grad()
            loss(net(x[rows]), labels[rows], epoch=epoch, epochs=epochs).backward()
            optimizer.step()
    return float(loss.rates())


@pytest.mark.parametrize(
    ("lr", "sgd", "group"), [(3.0, True, False), (1e-2, False, False), (3e-3, False, False), (3e-3, False, True)]
)
def test_a_plain_optimizer_does_not_run_away_with_the_rate(lr: float, sgd: bool, group: bool) -> None:
    assert 0.3 < own_loop(0.4, lr, sgd, group) < 0.75  # at a hundred times the pace it ends at 1


def test_the_loop_gives_the_rate_a_group_of_its_own() -> None:
    method = create_method("selection", Setup(lambda: create_model("tiny", 3), 3, LABELS), {"mechanism": "rate"})
    (group,) = (g for g in method.param_groups(plan()) if method.loss.rate_log_odds in set(g["params"]))
    assert (len(group["params"]), group["lr_factor"], group["weight_decay"]) == (1, 100.0, 0.0)


def test_an_optimizer_made_before_the_start_learns_the_rates() -> None:
    loss = create_loss("selection", mechanism="rate", rate="class", unlabelled="absent")
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.05)
    z, labels = simulated(500, torch.tensor([0.2, 0.8]), 1)
    loss.start(labels)
    for _ in range(150):
        optimizer.zero_grad()
        loss(z, labels).backward()
        optimizer.step()
    best = estimate_rate(z, labels, per_class=True, unlabelled="absent")
    assert loss.rates().tolist() == pytest.approx(best.rate.tolist(), abs=0.03)
    before, stored = loss.rate_log_odds, create_loss("selection", mechanism="rate", rate="class")
    stored.start(LABELS)
    loss.load_state_dict(stored.state_dict())
    assert loss.rate_log_odds is before
    assert loss.rates().tolist() == [0.5] * 3


@pytest.mark.parametrize("rate", [None, "class"])
def test_rates_of_older_files_are_read(rate: str | None) -> None:
    """They had the log-odds in hundreds, under another name."""
    loss = create_loss("selection", mechanism="rate", rate=rate)
    loss.start(LABELS)
    many = len(loss.rate_log_odds)
    old = {key: value for key, value in loss.state_dict().items() if key != "rate_log_odds"}
    fresh = create_loss("selection", mechanism="rate", rate=rate)
    fresh.load_state_dict({**old, "rate_logit": torch.linspace(-0.02, 0.01, many)})
    assert fresh.rates().tolist() == pytest.approx((torch.linspace(-2, 1, many)).sigmoid().tolist())
    assert "rate_logit" not in fresh.state_dict()


RATES = [0.2, 0.9, 0.5, 0.1, 0.7, 0.3, 1.0]


@pytest.mark.parametrize("kind", [list, tuple, np.float32, torch.tensor], ids=["list", "tuple", "array", "tensor"])
def test_a_rate_for_each_class_can_be_given(kind) -> None:
    logits, labels = example()
    given = np.array(RATES, np.float32) if kind is np.float32 else kind(RATES)
    loss = create_loss("selection", mechanism="rate", rate=given)
    assert loss.rate == pytest.approx(RATES)
    assert all(type(each) is float for each in loss.rate)
    assert not loss.state_dict()
    plain = selection(logits, labels, "rate", torch.tensor(RATES))
    torch.testing.assert_close(loss(logits, labels), plain, rtol=1e-6, atol=0)
    torch.testing.assert_close(selection(logits, labels, "rate", given), plain, rtol=1e-6, atol=0)
    assert loss.rates().tolist() == pytest.approx(RATES)
    assert loss.how_written()["rate"] is loss.rates()
    assert loss.to("meta").rates().is_meta
    with pytest.raises(RecipeError, match=r"rate has shape \(7,\) for 3 classes"):
        create_loss("selection", mechanism="rate", rate=given)(logits[:, :3], labels[:, :3])


def test_an_estimated_rate_can_be_given() -> None:
    z, labels = simulated(300, torch.tensor([0.4, 0.4]), 5)
    found = estimate_rate(z, labels).rate
    loss = create_loss("selection", mechanism="rate", rate=found)
    assert type(loss.rate) is float
    assert loss(z, labels) == selection(z, labels, "rate", float(found))
    each = estimate_rate(z, labels, per_class=True).rate
    narrow = selection(z.float(), labels, "rate", each)  # of logits in float32, rates in float64
    assert narrow.dtype == torch.float32
    assert narrow.item() == pytest.approx(selection(z, labels, "rate", each).item(), rel=1e-6)
    assert selection_posterior(z.float(), labels, "rate", each).dtype == torch.float32


@pytest.mark.parametrize("function", [selection, selection_posterior])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"mechanism": "rate", "rate": 2.0}, "rate is 2.0.*at most 1"),
        ({"mechanism": "rate", "rate": -1}, "rate is -1.*at least 0"),
        ({"mechanism": "rate", "rate": math.nan}, "rate is nan; give a finite number"),
        ({"mechanism": "rate", "rate": torch.tensor([0.1] * 6 + [1.5])}, "rate is .*1.5.*from 0 to 1"),
        ({"mechanism": "rate", "rate": torch.tensor(math.nan)}, "rate is nan; give chances"),
        ({"mechanism": "rate", "rate": [0.5, 0.5]}, r"rate has shape \(2,\) for 7 classes"),
        ({"mechanism": "rate", "rate": []}, "rate is an empty list"),
        ({"mechanism": "rate"}, "needs a rate"),
        ({"mechanism": "rate", "rate": 0.5, "a": 2.0}, 'a is 2.0.*mechanism="one"'),
        ({"rate": 0.5}, 'rate is 0.5, but one label was picked; set mechanism="rate"'),
        ({"a": 0.0}, "a is 0.0.*above 0"),
        ({"a": -1.0}, "a is -1.0.*above 0"),
    ],
)
def test_functions_name_bad_values_too(function, how, message) -> None:
    with pytest.raises(RecipeError, match=message):
        function(*example(), **how)


def test_what_cannot_be_estimated_from_is_named() -> None:
    z, labels = simulated(20, torch.tensor([0.4, 0.4]), 5)
    labels[0, 0] = 1
    torn = z.clone()
    torn[3, 1] = math.nan
    with pytest.raises(DataError, match="estimate_rate: the logit of row 3, class 1 is NaN"):
        estimate_rate(torn, labels)
    with pytest.raises(LabelError, match="is 2; give"):
        estimate_rate(z, labels * 2)


def test_arrays_and_labels_are_taken() -> None:
    z, labels = simulated(50, torch.tensor([0.4, 0.4]), 5)
    kinds = (labels, labels.numpy(), Labels.from_dense(labels), labels.tolist())
    rates = {estimate_rate(logits, given).rate.item() for logits in (z, z.numpy()) for given in kinds}
    assert len(rates) == 1
    chances = [selection_posterior(logits, given) for logits in (z, z.numpy()) for given in kinds]
    assert all(torch.equal(chances[0], other) for other in chances)
