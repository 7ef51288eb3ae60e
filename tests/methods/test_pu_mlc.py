"""PU-MLC and vPU: the terms of a step, the choice of γ, the ablations of the paper, and an exact resume."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pluralis.checkpoint import Store, state_hash
from pluralis.engine import fit
from pluralis.errors import Interrupted, RecipeError
from pluralis.labels import Labels
from pluralis.losses.pu import adaptive_temperature, mixup, variational
from pluralis.method import Batch, Clock, Setup
from pluralis.methods import create_method
from pluralis.methods.pu_mlc import PUMLC, VPU, auto_gamma, draw_beta, published_gamma
from pluralis.models import create_model
from pluralis.models.lgconv import GlobalBranch
from tests.toys import plan, scenes

SEED = 9  # gives a μ that mixes: Beta(0.3, 0.3) is mostly near 0 or 1
LABELS = Labels.from_dense([[1, -1, 0], [0, 1, 0], [0, 0, 1], [-1, 1, 1], [1, 0, 0]])


def build(name: str = "pu-mlc", labels: Labels | None = LABELS, seed: int = 0, **params: Any) -> PUMLC:
    torch.manual_seed(seed)
    method = create_method(name, Setup(lambda: create_model("tiny", 3), 3, labels), params)
    assert isinstance(method, PUMLC)
    return method


def batch_of(rows: int = 5, dtype: torch.dtype = torch.uint8) -> Batch:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randint(0, 256, (rows, 3, 24, 24), generator=generator, dtype=torch.uint8).to(dtype)
    return Batch((x,), torch.from_numpy(LABELS.dense()[:rows]), torch.arange(rows))


def terms_of(method: PUMLC, batch: Batch) -> dict[str, Tensor]:
    torch.manual_seed(SEED)
    return method.eval()(batch, Clock())


def test_terms_of_a_step() -> None:
    """Both terms from the logits of the network, for an odd number of rows: the middle one is not mixed."""
    method, batch = build(gamma=0.4, alpha=3.0, lam=0.7), batch_of(5)
    terms = terms_of(method, batch)
    z = method.predict(batch.views[0])
    tau = adaptive_temperature(z, 3.0)
    torch.testing.assert_close(terms["variational"], variational(z, batch.labels, 0.4, tau))
    torch.manual_seed(SEED)
    mu = draw_beta(0.3)
    x = batch.views[0].double()
    mixed = method.predict((mu * x[:2] + (1 - mu) * x[3:]).float())
    pairs = (torch.tensor([0, 1]), torch.tensor([3, 4]))
    torch.testing.assert_close(terms["mixup"], 0.7 * mixup(z, batch.labels, mixed, pairs, mu), rtol=1e-4, atol=1e-7)
    assert terms["mixup"] > 0


def test_the_released_variant_draws_pairs_and_mixes_probabilities() -> None:
    method, batch = build(gamma=0.4, variant="released"), batch_of(4)
    terms = terms_of(method, batch)
    z = method.predict(batch.views[0])
    torch.manual_seed(SEED)
    first, mu = torch.randperm(2), draw_beta(0.3)
    x = batch.views[0].float()
    mixed = method.predict(mu * x[first] + (1 - mu) * x[2:])
    pairs = (first, torch.tensor([2, 3]))
    expected = mixup(z, batch.labels, mixed, pairs, mu, "probabilities", "released")
    torch.testing.assert_close(terms["mixup"], expected, rtol=1e-4, atol=1e-7)
    tau = adaptive_temperature(z, 2.0)
    torch.testing.assert_close(terms["variational"], variational(z, batch.labels, 0.4, tau, variant="released"))


def test_without_factor_temperature_and_mixup_it_is_the_variational_term_of_vpu() -> None:
    batch = batch_of()
    plain = terms_of(build(gamma=0.0, tau=1.0, lam=0.0), batch)
    vpu = terms_of(build("vpu"), batch)
    assert list(plain) == ["variational"]
    assert torch.equal(plain["variational"], vpu["variational"])
    z = build().eval().predict(batch.views[0]).double().detach().numpy()
    p, y, losses = 1 / (1 + np.exp(-z)), batch.labels.numpy(), []
    for c in range(3):
        losses.append(math.log(p[:, c].mean()) - np.log(p[y[:, c] > 0, c]).mean())
    assert plain["variational"].item() == pytest.approx(np.mean(losses), abs=1e-6)


@pytest.mark.parametrize(("name", "usual"), [("pu-mlc", "keep"), ("vpu", "skip")])
def test_classes_without_a_positive_in_the_batch(name: str, usual: str) -> None:
    """The third class has none: the loss of the others over three, and of that class's unlabelled term what is said."""
    batch, plain = batch_of(2), {"gamma": 0.0, "tau": 1.0} if name == "pu-mlc" else {}
    values, slopes = {}, {}
    for params in ({}, {"no_positive": "keep"}, {"no_positive": "skip"}):
        method, said = build(name, **plain, **params), params.get("no_positive")
        term = terms_of(method, batch)["variational"]
        values[said], (slopes[said],) = term.item(), torch.autograd.grad(term, method.net.head.get_parameter("fc.bias"))
    p = method.predict(batch.views[0]).double().sigmoid().detach().numpy()
    seen = [math.log(p[:, c].mean()) - math.log(p[c, c]) for c in (0, 1)]  # row 0 has class 0, row 1 has class 1
    assert values["skip"] == pytest.approx(sum(seen) / 3, abs=1e-6)
    assert values["keep"] == pytest.approx((sum(seen) + math.log(p[:, 2].mean())) / 3, abs=1e-6)
    assert values[None] == values[usual]
    assert slopes["keep"][2] > 0
    assert slopes["skip"][2] == 0


def test_a_step_of_vpu_without_positives_moves_nothing() -> None:
    method, batch = build("vpu", lam=0.0), batch_of(3)
    empty = Batch(batch.views, batch.labels.clamp(max=0), batch.index)
    term = terms_of(method, empty)["variational"]
    term.backward()  # type: ignore[no-untyped-call]
    assert term == 0
    assert all((p.grad == 0).all() for p in method.parameters() if p.grad is not None)


def test_vpu_anchors_known_positives_at_one() -> None:
    method, batch = build("vpu", lam=1.0), batch_of(2)
    assert isinstance(method, VPU)
    z = method.eval().predict(batch.views[0])
    torch.manual_seed(SEED)
    mu = draw_beta(0.3) if not torch.randperm(1) else 0.0
    x = batch.views[0].float()
    r = torch.where(batch.labels > 0, 1.0, z.sigmoid())
    gap = (mu * r[0] + (1 - mu) * r[1]).log() - method.predict(mu * x[:1] + (1 - mu) * x[1:]).sigmoid().log()
    torch.testing.assert_close(terms_of(method, batch)["mixup"], gap.square().mean(), rtol=1e-4, atol=1e-7)


def test_parameters_of_mixup_reach_it() -> None:
    """δ is that of the draw, and the λ of vPU is its own."""
    batch = batch_of(4)
    method = build(gamma=0.4, delta=4.0)
    found = terms_of(method, batch)["mixup"]
    z, x = method.predict(batch.views[0]), batch.views[0].float()
    pairs = (torch.tensor([0, 1]), torch.tensor([2, 3]))
    values = []
    for delta in (4.0, 0.3):
        torch.manual_seed(SEED)
        mu = draw_beta(delta)
        mixed = method.predict(mu * x[:2] + (1 - mu) * x[2:])
        values.append(mixup(z, batch.labels, mixed, pairs, mu))
    torch.testing.assert_close(found, values[0], rtol=1e-4, atol=1e-7)
    assert abs(values[1] / values[0] - 1) > 0.01
    plain, one = (terms_of(build("vpu", **more), batch)["mixup"].item() for more in ({}, {"lam": 1.0}))
    assert plain == pytest.approx(0.03 * one, rel=1e-5)
    assert one > 0


def test_dropping_positives_turns_the_labels_around() -> None:
    batch = batch_of()
    method = build(gamma=0.4, drop="positives", absent="cross-entropy")
    turned = terms_of(method, batch)["variational"]
    z = method.predict(batch.views[0])
    expected = variational(-z, -batch.labels, 0.4, adaptive_temperature(z, 2.0), absent="cross-entropy")
    torch.testing.assert_close(turned, expected)
    with pytest.raises(RecipeError, match="absent labels"):
        build(labels=Labels.from_lists([[0], [1]], 3), drop="positives")
    build(labels=None, drop="positives")


def test_switches_reach_the_loss() -> None:
    values = {
        str(params): terms_of(build(**{"gamma": 0.4, **params}), batch_of())["variational"].item()
        for params in (
            {},
            {"gamma": 0.8},
            {"tau": 0.2},
            {"tau": 2.0},
            {"alpha": 1.0},
            {"positives_in_u": False},
            {"absent": "cross-entropy"},
            {"drop": "positives"},
            {"variant": "released"},
        )
    }
    assert len(set(values.values())) == len(values)
    assert all(map(math.isfinite, values.values()))


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("params", [{}, {"variant": "released"}])
def test_small_batches(rows: int, params: dict[str, Any]) -> None:
    method, batch = build(**params).train(), batch_of(rows)
    labels = batch.labels.clone()
    sum(method(batch, Clock()).values()).backward()  # type: ignore[union-attr]
    assert torch.equal(batch.labels, labels)
    for name, parameter in method.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_the_start_from_a_zero_head_is_finite() -> None:
    method = build()
    torch.nn.init.zeros_(method.net.head.get_parameter("fc.weight"))
    sum(method(batch_of(), Clock()).values()).backward()  # type: ignore[union-attr]
    assert all(p.grad.isfinite().all() for p in method.parameters() if p.grad is not None)


def test_feature_vectors_and_float64() -> None:
    torch.manual_seed(0)
    method = create_method("pu-mlc", Setup(lambda: torch.nn.Linear(6, 3).double(), 3, LABELS))  # type: ignore[arg-type, return-value]
    batch = Batch((torch.randn(5, 6, dtype=torch.float64),), torch.from_numpy(LABELS.dense()), torch.arange(5))
    assert all(t.dtype == torch.float64 and t.isfinite() for t in method(batch, Clock()).values())


def test_published_gammas() -> None:
    assert [published_gamma("voc", r / 10) for r in (1, 5, 9, 10)] == [0.85, 0.45, 0.01, 0.01]
    assert [published_gamma("coco", r) for r in (0.0, 0.1, 0.34, 0.9, 1.0)] == [0.55, 0.55, 0.35, 0.05, 0.03]
    for wrong in (("imagenet", 0.5), ("voc", 1.5)):
        with pytest.raises(RecipeError):
            published_gamma(*wrong)


def test_gamma_follows_the_share_of_written_positives() -> None:
    assert build().gamma == auto_gamma(LABELS) == 0.15  # 6 of an expected 7.5 positives: 0.05, but not below 0.15
    one_each = Labels.from_lists([[0], [1], [2]], 3)
    assert build(labels=one_each).gamma == 0.15
    assert build(labels=one_each, k=2.9).gamma == 0.55
    assert build(labels=one_each, k=1).gamma == 0.15
    assert build(labels=one_each, k=1, gamma="published").gamma == 0.01
    assert [build(labels=one_each, k=k, gamma="published-coco").gamma for k in (1, 2, 2.9)] == [0.03, 0.25, 0.35]
    some = Labels.from_lists([[0]] + [[]] * 9, 3)  # a label in ten images: a tenth of 1, a fifth of half a label each
    assert [build(labels=some, k=k).gamma for k in (1, 0.5)] == [0.85, 0.65]
    with_absent = Labels.from_lists([[0], [1], [2]], 3, negatives=[[1], [], []])  # they are not learned from
    assert build(labels=with_absent).gamma == 0.15
    assert build(gamma=0.123).gamma == 0.123
    assert build(labels=None).gamma == 0.0


@pytest.mark.parametrize(
    "params",
    [
        {"gamma": "car"},
        {"gamma": -1},
        {"k": 0},
        {"tau": 0},
        {"tau": "cold"},
        {"alpha": 0},
        {"lam": -1},
        {"delta": 0},
        {"positives_in_u": 1},
        {"drop": "all"},
        {"absent": "?"},
        {"no_positive": "drop"},
        {"lgconv": "yes"},
        {"variant": "mine"},
    ],
)
def test_wrong_parameters(params: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=f"method pu-mlc: {next(iter(params))} is"):
        build(**params)
    if params.keys() <= {"lam", "delta", "no_positive"}:
        with pytest.raises(RecipeError, match="method vpu"):
            build("vpu", **params)


def test_a_wrong_word_is_answered_with_the_words_there_are() -> None:
    for name, words in (("gamma", "'auto' or 'published' or 'published-coco'"), ("tau", "'adaptive'")):
        with pytest.raises(RecipeError, match=f"give a number or {words}$"):
            build(**{name: "car"})


def test_lgconv_needs_dense_convolutions() -> None:
    setup = Setup(lambda: create_model("efficientnet_lite0", 3), 3)
    with pytest.raises(RecipeError, match="lgconv = false"):
        create_method("pu-mlc", setup, {"lgconv": True})
    assert any(".global_branch." in key for key in build(lgconv=True).state_dict())
    for variant in ("paper", "released"):
        branches = [m for m in build(lgconv=True, variant=variant).modules() if isinstance(m, GlobalBranch)]
        assert branches
        assert {branch.residual for branch in branches} == {variant == "released"}


def test_draws_of_mu() -> None:
    torch.manual_seed(0)
    draws = [draw_beta(0.3) for _ in range(400)]
    torch.manual_seed(0)
    assert draw_beta(0.3) == draws[0]
    assert all(0 <= mu <= 1 for mu in draws)
    assert np.var(draws) == pytest.approx(1 / (4 * 1.6), rel=0.15)  # of Beta(δ, δ): 1 / (4 (2δ + 1))


@pytest.mark.parametrize("name", ["pu-mlc", "vpu"])
def test_resume_in_mid_epoch_and_learning(name: str, tmp_path: Path) -> None:
    data, settings = scenes(24), plan(epochs=2, ema=0.9, freeze=2)
    params = {"lgconv": True, "variant": "released"} if name == "pu-mlc" else {}

    def make(seed: int) -> PUMLC:
        torch.manual_seed(seed)
        method = create_method(name, Setup(lambda: create_model("tiny", 10, dropout=0.1), 10, data.labels), params)
        assert isinstance(method, PUMLC)
        return method

    whole = make(0)
    expected = fit(whole, data, settings, seed=3)
    losses = [epoch["variational"] for epoch in expected.history]
    assert losses[-1] < losses[0]
    left = [4]  # of 3 steps an epoch

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    with pytest.raises(Interrupted):
        fit(make(0), data, settings, seed=3, store=Store(tmp_path), should_stop=stop)
    again = make(9)
    found = fit(again, data, settings, seed=3, store=Store(tmp_path))
    assert found.history == expected.history
    assert state_hash(again.state_dict()) == state_hash(whole.state_dict())
    x = batch_of().views[0]
    again.eval()
    assert torch.equal(again.predict(x), again.predict(x))
