"""Co-teaching, co-teaching+, JoCoR and decoupling against their formulas written out row by row."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pluralis.checkpoint import Store, state_hash
from pluralis.engine import fit
from pluralis.errors import Interrupted, RecipeError
from pluralis.evaluate import predict
from pluralis.losses.functional import an
from pluralis.method import Clock, Setup
from pluralis.methods import create_method
from pluralis.methods.co_teaching import CoTeaching, CoTeachingPlus, Decoupling, JoCoR, divergence
from pluralis.models import create_model
from tests.methods.pairs import batch_of, cross_entropy, draw, setup_of
from tests.toys import plan, scenes

NAMES = ("co-teaching", "co-teaching+", "jocor", "decoupling")
EVERY = tuple(pytest.param(cls, id=cls.__name__) for cls in (CoTeaching, CoTeachingPlus, JoCoR, Decoupling))


def row_losses(z: Tensor, labels: Tensor) -> np.ndarray:
    return cross_entropy(z.numpy(), labels.numpy() > 0).mean(1)


def smallest(losses: np.ndarray, rows: list[int], rate: Fraction) -> list[int]:
    count = max(1, math.floor(rate * len(rows)))
    return [row for _, row in sorted((losses[row], row) for row in rows)[:count]]


def differing(f: Tensor, g: Tensor) -> list[int]:
    decisions = [1 / (1 + np.exp(-z.numpy())) > 0.5 for z in (f, g)]
    return [row for row in range(len(f)) if (decisions[0][row] != decisions[1][row]).any()]


def similar(rng: np.random.Generator, rows: int = 10, ties: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Two networks that disagree on some rows; with ties, every row is there twice."""
    f, g, labels = draw(rng, rows, 5, ties=False)
    f, g = f - 1, f - 1 + 0.3 * g
    twice = torch.arange(rows) // 2 if ties else torch.arange(rows)
    return f[twice], g[twice], labels[twice]


@pytest.mark.parametrize("ties", [False, True])
def test_co_teaching_exchanges_the_rows_of_small_loss(ties: bool) -> None:
    rng = np.random.default_rng(0)
    for epoch, rate in ((0, Fraction(1)), (2, Fraction(4, 5)), (5, Fraction(1, 2)), (50, Fraction(1, 2))):
        f, g, labels = similar(rng, ties=ties)
        method = CoTeaching(setup_of(f, g), forget=0.5, ramp=5)
        terms = method(batch_of(labels), Clock(epoch=epoch))
        losses = row_losses(f, labels), row_losses(g, labels)
        every = list(range(len(f)))
        chosen = smallest(losses[1], every, rate)
        terms["f"].backward()
        assert method.f.logits.grad.any(1).nonzero().flatten().tolist() == sorted(chosen)  # type: ignore[union-attr, operator]
        assert terms["f"].item() == pytest.approx(losses[0][chosen].mean(), rel=1e-12)
        assert terms["g"].item() == pytest.approx(losses[1][smallest(losses[0], every, rate)].mean(), rel=1e-12)


def test_co_teaching_plus_chooses_among_the_rows_in_dispute() -> None:
    rng, sizes = np.random.default_rng(1), set()
    for _ in range(20):
        f, g, labels = similar(rng)
        method, rows = CoTeachingPlus(setup_of(f, g), forget=0.4, ramp=1, warmup=2), differing(f, g)
        if not rows:
            continue
        sizes.add(len(rows))
        losses = row_losses(f, labels), row_losses(g, labels)
        term = method(batch_of(labels), Clock(epoch=2))["f"].item()
        assert term == pytest.approx(losses[0][smallest(losses[1], rows, Fraction(3, 5))].mean(), rel=1e-12)
        early = CoTeaching(setup_of(f, g), forget=0.4, ramp=1)(batch_of(labels), Clock(epoch=1))["g"].item()
        assert method(batch_of(labels), Clock(epoch=1))["g"].item() == early
    assert len(sizes) > 3
    assert min(sizes) < 10


def test_networks_that_agree() -> None:
    """Co-teaching+ makes a step of co-teaching, decoupling makes none; both stay connected to the weights."""
    f, _, labels = similar(np.random.default_rng(2))
    g, clock, batch = 1.5 * f, Clock(epoch=9), batch_of(labels)
    plus = CoTeachingPlus(setup_of(f, g), warmup=0)(batch, clock)
    assert plus["f"].item() == CoTeaching(setup_of(f, g))(batch, clock)["f"].item() > 0
    apart = Decoupling(setup_of(f, g))
    terms = apart(batch, clock)
    assert [term.item() for term in terms.values()] == [0, 0]
    (terms["f"] + terms["g"]).backward()
    assert not apart.f.logits.grad.any()  # type: ignore[operator, union-attr]
    assert not apart.g.logits.grad.any()  # type: ignore[operator, union-attr]


def test_decoupling_learns_from_the_rows_in_dispute() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        f, g, labels = similar(rng)
        rows = differing(f, g)
        terms = Decoupling(setup_of(f, g))(batch_of(labels), Clock())
        expected = row_losses(f, labels)[rows].sum() / max(len(rows), 1)
        assert terms["f"].item() == pytest.approx(expected, rel=1e-12)
        warm = Decoupling(setup_of(f, g), warmup=1)(batch_of(labels), Clock())
        assert warm["g"].item() == pytest.approx(an(g, labels).item(), rel=1e-12)


def test_few_rows_in_dispute_make_a_small_step() -> None:
    """One row of 40: the sum is divided by 4."""
    f = torch.full((40, 2), -1.0, dtype=torch.float64)
    g = f.clone()
    g[7, 1] = 1.0
    labels = torch.zeros(40, 2)
    term = Decoupling(setup_of(f, g))(batch_of(labels), Clock())["g"].item()
    assert term == pytest.approx((math.log1p(math.exp(-1)) + math.log1p(math.exp(1))) / 2 / 4)


def test_jocor_is_its_joint_loss_over_the_rows_where_that_is_smallest() -> None:
    rng = np.random.default_rng(4)
    for lam in (0.0, 0.3, 0.85, 1.0):
        f, g, labels = draw(rng, 10, 5, ties=False)
        p, q = (1 / (1 + np.exp(-z.numpy())) for z in (f, g))
        kl = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
        kl += q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))
        joint = (1 - lam) * (row_losses(f, labels) + row_losses(g, labels)) + lam * kl.mean(1)
        kept = smallest(joint, list(range(10)), Fraction(7, 10))
        terms = JoCoR(setup_of(f, g), forget=0.3, ramp=2, lam=lam)(batch_of(labels), Clock(epoch=2))
        assert (terms["fit"] + terms["agreement"]).item() == pytest.approx(joint[kept].mean(), rel=1e-11)


def test_the_divergence_keeps_its_digits() -> None:
    """p = σ(20) and σ(15) differ by 3e-7, of which float32 would keep one digit."""
    exact = divergence(torch.tensor([[20.0]], dtype=torch.float64), torch.tensor([[15.0]], dtype=torch.float64))
    assert divergence(torch.tensor([[20.0]]), torch.tensor([[15.0]])).item() == pytest.approx(exact.item(), rel=1e-5)
    assert exact.item() == pytest.approx(5 * (1 / (1 + math.exp(15)) - 1 / (1 + math.exp(20))), rel=1e-12)


def test_without_forgetting_all_of_them_assume_negative() -> None:
    f, g, labels = draw(np.random.default_rng(5), 6, 4, ties=False)
    batch, clock, expected = batch_of(labels), Clock(epoch=20), an(f, labels) + an(g, labels)
    for method in (
        CoTeaching(setup_of(f, g), forget=0.0),
        CoTeachingPlus(setup_of(f, g), forget=0.0, warmup=99),
        JoCoR(setup_of(f, g), forget=0.0, lam=0.0),
        Decoupling(setup_of(f, g), warmup=99),
    ):
        total = sum(method(batch, clock).values())
        torch.testing.assert_close(total, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", [CoTeaching, CoTeachingPlus, Decoupling])
def test_each_loss_moves_its_own_network(kind: type[CoTeaching]) -> None:
    f, g, labels = draw(np.random.default_rng(6), 6, 4, ties=False)
    method = kind(setup_of(f, g))
    method(batch_of(labels), Clock(epoch=8))["f"].backward()
    assert method.f.logits.grad.any()  # type: ignore[operator, union-attr]
    assert method.g.logits.grad is None


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("value", [1, 0, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_finite_at_the_edges(kind: type[CoTeaching], value: int, dtype: torch.dtype) -> None:
    for rows in (1, 3):
        f = torch.tensor([[1e4, -1e4, 0.0]] * rows, dtype=dtype)
        for g in (f, -f):
            method, batch = kind(setup_of(f, g)), batch_of(torch.full((rows, 3), value))
            terms = method(batch, Clock(epoch=30))
            sum(terms.values()).backward()  # type: ignore[union-attr]
            assert all(torch.isfinite(term) for term in terms.values())
            assert torch.isfinite(method.f.logits.grad).all()  # type: ignore[arg-type]
            assert torch.isfinite(method.g.logits.grad).all()  # type: ignore[arg-type]
            assert (batch.labels == value).all()


@pytest.mark.parametrize("name", NAMES)
def test_they_learn_and_a_stopped_run_goes_on_exactly(name: str, tmp_path: Path) -> None:
    data, settings = scenes(24), plan(epochs=3, augment="none")

    def fresh(seed: int = 0) -> CoTeaching:
        torch.manual_seed(seed)
        net = Setup(lambda: create_model("tiny", 10, dropout=0.1), 10)
        return create_method(name, net, {"warmup": 1} if name == "co-teaching+" else {})  # type: ignore[return-value]

    whole = fresh()
    expected = fit(whole, data, settings, seed=3)
    first, last = (sum(expected.history[i][term] for term in expected.history[0] if term in "fg fit") for i in (0, -1))
    assert last < first or name == "decoupling"  # as they come to agree it learns from fewer and harder rows
    left = [4]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    with pytest.raises(Interrupted):
        fit(fresh(), data, settings, seed=3, store=Store(tmp_path), should_stop=stop)
    again = fresh(seed=9)
    found = fit(again, data, settings, seed=3, store=Store(tmp_path))
    assert state_hash(again.state_dict()) == state_hash(whole.state_dict())
    assert found.history == expected.history
    assert torch.equal(predict(again, data), predict(whole, data))


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("co-teaching", {"forget": 1.0}, "method co-teaching: forget is 1.0"),
        ("co-teaching+", {"ramp": 0}, "method co-teaching\\+: ramp is 0"),
        ("co-teaching+", {"warmup": -1}, "warmup is -1"),
        ("jocor", {"lam": 1.5}, "lam is 1.5"),
        ("decoupling", {"forget": 0.1}, "unknown parameter 'forget'"),
    ],
)
def test_wrong_parameters_are_refused(name: str, params: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        create_method(name, Setup(lambda: create_model("tiny", 3), 3), params)
