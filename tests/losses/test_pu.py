"""The positive-unlabelled losses against loops in numpy, their identities, and the batches that break such losses."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pluralis.errors import LabelError, RecipeError
from pluralis.losses import pointwise
from pluralis.losses.pu import MIN_TAU, adaptive_temperature, mixup, variational
from tests.losses.check_loss import Spec, check_loss, example, gradient


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


def reference(
    z: np.ndarray,
    y: np.ndarray,
    frozen: np.ndarray,
    gamma: float,
    tau: np.ndarray,
    inside: bool,
    absent: str,
    eps: float,
    skip: bool = False,
) -> np.ndarray:
    """Class by class and row by row; p_c^γ comes from `frozen`. With eps it is the released form, p_c of tempered z."""
    losses = np.zeros(z.shape[1], z.dtype)
    for c in range(z.shape[1]):
        mixture = [n for n in range(len(z)) if inside or y[n, c] <= 0]
        positives = [n for n in range(len(z)) if y[n, c] > 0]
        negatives = [n for n in range(len(z)) if y[n, c] < 0]
        mean = sum(sigmoid(z[n, c] / tau[c]) for n in mixture) / len(mixture) if mixture else 1.0
        inner = sum(np.log(sigmoid(z[n, c] / tau[c]) + eps) for n in positives) / len(positives) if positives else 0.0
        plain = [sigmoid(frozen[n, c] / (tau[c] if eps else 1)) for n in mixture] or [1.0]
        if positives or not skip:
            losses[c] = np.mean(plain) ** gamma * np.log(mean + eps) - np.log(np.exp(inner) + eps)
        if negatives and absent == "cross-entropy":
            losses[c] -= sum(np.log(sigmoid(-z[n, c] / tau[c])) for n in negatives) / len(negatives)
    return losses


def few(rows: int = 20, classes: int = 6) -> tuple[Tensor, Tensor]:
    """Three columns as they come, one without a positive, one of unknowns and one of positives."""
    logits, labels = example(rows, classes)
    labels[:, 3] = labels[:, 3].clamp(max=0)
    labels[:, 4] = 0
    labels[:, 5] = 1
    return logits, labels


TEMPERING = ["one", "fixed", "adaptive"]
SWITCHES = list(itertools.product([0.0, 0.7], TEMPERING, [True, False], ["unlabelled", "cross-entropy"]))


@pytest.mark.parametrize(("gamma", "tempering", "inside", "absent"), SWITCHES)
@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("no_positive", ["keep", "skip"])
def test_formula_and_gradient(
    gamma: float, tempering: str, inside: bool, absent: str, variant: str, no_positive: str
) -> None:
    logits, labels = few()
    z, y = logits.numpy(), labels.numpy()
    spread = np.minimum(0.3 * np.sqrt(((z - z.mean(0)) ** 2).mean(0)), 1)
    tau = {"one": np.ones(6), "fixed": np.full(6, 0.2), "adaptive": spread}[tempering]
    given = adaptive_temperature(logits, 0.3) if tempering == "adaptive" else float(tau[0])
    options = {"gamma": gamma, "tau": given, "positives_in_u": inside, "absent": absent, "variant": variant}
    options["no_positive"] = no_positive
    fixed = (gamma, tau, inside, absent, 1e-10 if variant == "released" else 0.0, no_positive == "skip")
    expected = reference(z, y, z, *fixed)
    np.testing.assert_allclose(variational(logits, labels, reduction="none", **options).numpy(), expected, rtol=1e-12)
    total, slope = gradient(variational, logits, labels, reduction="sum", **options)  # type: ignore[arg-type]
    assert total.item() == pytest.approx(expected.sum(), rel=1e-12)
    for c in range(6):
        for n in (0, 7, 19):
            step = np.zeros_like(z, dtype=complex)
            step[n, c] = 1e-30j
            moved = reference(z + step, y, z, *fixed)[c].imag / 1e-30
            assert slope[n, c].item() == pytest.approx(moved, rel=1e-10, abs=1e-15)
    assert variational(logits, labels, **options).item() == pytest.approx(expected.mean(), rel=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("no_positive", ["keep", "skip"])
def test_degenerate_batches_have_the_gradient_of_the_formula(
    dtype: torch.dtype, inside: bool, no_positive: str
) -> None:
    """With the temperature of the batch itself, which is a constant for the derivative."""
    logits, labels = few(6)
    cases = {
        "one row": (logits[:1], labels[:1]),
        "constant columns": (logits[:1].expand(6, 6).contiguous(), labels),
        "no positive": (logits, labels.clamp(max=0)),
        "all present": (logits, torch.ones_like(labels)),
        "far apart": (30 * logits, labels),
        "far below": (logits - 95, labels),  # σ(s) is 0 in float32
    }
    for case, (z, y) in cases.items():
        z = z.to(dtype)
        tau = adaptive_temperature(z, 2.0)
        options = {"gamma": 0.3, "tau": tau, "positives_in_u": inside, "no_positive": no_positive}
        each, slope = gradient(variational, z, y, reduction="none", **options)  # type: ignore[arg-type]
        wide, given = z.double().numpy(), y.numpy()
        fixed = (wide, 0.3, tau.double().numpy(), inside, "unlabelled", 0.0, no_positive == "skip")
        close = {"rtol": 1e-11, "atol": 1e-14} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 1e-6}
        np.testing.assert_allclose(each.numpy(), reference(wide, given, *fixed), **close, err_msg=case)
        for n, c in itertools.product(range(len(wide)), range(6)):
            step = np.zeros_like(wide, dtype=complex)
            step[n, c] = 1e-30j
            moved = reference(wide + step, given, *fixed)[c].imag / 1e-30
            np.testing.assert_allclose(slope[n, c].item(), moved, **close, err_msg=case)


def test_the_temperature_has_no_gradient_and_the_gradient_no_derivative() -> None:
    logits, labels = few()
    tau = torch.full((6,), 0.5, dtype=torch.float64, requires_grad=True)
    z = logits.clone().requires_grad_()
    (slope,) = torch.autograd.grad(variational(z, labels, tau=tau), z)
    torch.testing.assert_close(slope, gradient(variational, logits, labels, tau=0.5)[1], rtol=1e-14, atol=0)  # type: ignore[arg-type]
    assert not variational(logits, labels, tau=tau).requires_grad
    with pytest.raises(RecipeError, match="no second derivative"):
        torch.autograd.grad(variational(z, labels), z, create_graph=True)


def mean_of_classes(
    z: np.ndarray, y: np.ndarray, frozen: np.ndarray, gamma: float, tau: float, skip: bool
) -> np.ndarray:
    """Skipped classes count: the sum over the classes is divided by how many there are."""
    taus = np.full(z.shape[1], tau)
    return reference(z, y, frozen, gamma, taus, True, "unlabelled", 0.0, skip).sum() / z.shape[1]


@pytest.mark.parametrize("no_positive", ["keep", "skip"])
@pytest.mark.parametrize(("gamma", "tau", "pull"), [(0.0, 1.0, -2.0), (0.15, 2.0, -1.5)])
def test_variational_as_every_loss(gamma: float, tau: float, pull: float, no_positive: str) -> None:
    # A positive alone among three rows at −1e4: 1 up by its own logarithm, a third of it down by that of the mean,
    # which a factor of p^γ = 0 takes away.
    loss = partial(variational, gamma=gamma, tau=tau, no_positive=no_positive)
    formula = partial(mean_of_classes, gamma=gamma, tau=tau, skip=no_positive == "skip")
    spec = Spec("variational", loss, formula, whole=True, coupled=True, pull=pull, detached=gamma > 0)
    check_loss(spec)


def test_without_factor_and_temperature_it_is_vpu() -> None:
    """Eq. 6 by hand: two of three rows positive."""
    z = torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    got = variational(z, torch.tensor([[1], [0], [1]]), gamma=0.0, tau=1.0)
    p = sigmoid(z.numpy()[:, 0])
    assert got.item() == pytest.approx(math.log(p.mean()) - (math.log(p[0]) + math.log(p[2])) / 2, rel=1e-14)


def test_a_class_without_positives_keeps_the_unlabelled_term_only() -> None:
    logits, labels = few()
    each, slope = gradient(variational, logits, labels, reduction="none", gamma=0.5)  # type: ignore[arg-type]
    mean = logits[:, 4].sigmoid().mean()
    assert each[4].item() == pytest.approx((mean**0.5 * mean.log()).item(), rel=1e-12)
    assert (slope[:, 4] > 0).all()


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_a_class_without_positives_can_be_skipped(variant: str) -> None:
    """It adds nothing, the others what they add without it, and the mean is over all classes."""
    logits, labels = few()
    options = {"gamma": 0.5, "no_positive": "skip", "variant": variant}
    each, slope = gradient(variational, logits, labels, reduction="none", **options)
    assert (each[[3, 4]] == 0).all()
    assert (slope[:, [3, 4]] == 0).all()
    rest = [0, 1, 2, 5]
    kept, kept_slope = gradient(variational, logits[:, rest], labels[:, rest], gamma=0.5, variant=variant)  # type: ignore[arg-type]
    mean, mean_slope = gradient(variational, logits, labels, **options)  # type: ignore[arg-type]
    torch.testing.assert_close(mean, kept * 4 / 6, rtol=1e-14, atol=0)
    torch.testing.assert_close(mean_slope[:, rest], kept_slope * 4 / 6, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inside", [True, False])
def test_a_batch_without_positives_can_be_skipped(inside: bool, dtype: torch.dtype) -> None:
    logits, labels = few()
    options = {"gamma": 0.5, "no_positive": "skip", "positives_in_u": inside}
    for given in (torch.zeros_like(labels), labels.clamp(max=0), -torch.ones_like(labels), labels[:0]):
        z = logits[: len(given)].to(dtype)
        with torch.autograd.set_detect_anomaly(True):
            value, slope = gradient(variational, z, given, tau=adaptive_temperature(z, 2.0), **options)  # type: ignore[arg-type]
        assert value == 0
        assert (slope == 0).all()
    known, slope = gradient(variational, logits, labels.clamp(max=0), absent="cross-entropy", **options)  # type: ignore[arg-type]
    assert known > 0  # what is known to be absent is not skipped
    assert ((slope > 0) == (labels < 0)).all()


def test_a_class_that_is_skipped_hides_no_bad_logit() -> None:
    logits, labels = few()
    logits[0, 4] = torch.nan
    assert variational(logits, labels, no_positive="skip").isnan()


def test_a_class_of_positives_alone_has_no_mixture() -> None:
    logits, labels = few()
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way back either, though it would be masked
        each, slope = gradient(variational, logits, labels, reduction="none", gamma=0.5, positives_in_u=False)  # type: ignore[arg-type]
    assert each[5].item() == pytest.approx(-torch.nn.functional.logsigmoid(logits[:, 5]).mean().item(), rel=1e-12)
    assert (slope[:, 5] < 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("autocast", [False, True])
def test_large_logits(dtype: torch.dtype, variant: str, autocast: bool) -> None:
    column = torch.tensor([1e4, -1e4, 100.0, -100.0, 0.0])
    logits = torch.stack([column, -column, torch.full((5,), -1e4), torch.full((5,), 1e4)], 1).to(dtype)
    labels = torch.tensor([[0, 1, 1, 0], [1, 0, 0, -1], [0, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 0]], dtype=torch.int8)
    pairs = (torch.tensor([0, 1]), torch.tensor([3, 4]))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for gamma, inside in ((0.0, True), (0.85, False)):
            for tau in (adaptive_temperature(logits, 2.0), MIN_TAU):
                options = {"gamma": gamma, "tau": tau, "positives_in_u": inside, "variant": variant}
                options["absent"] = "cross-entropy"
                value, slope = gradient(variational, logits, labels, **options)  # type: ignore[arg-type]
                assert value.isfinite()
                assert value.dtype == torch.float32
                assert slope.isfinite().all()
                if variant == "paper":
                    assert slope[1, 0] < 0, "a positive at −1e4 lost its gradient"
        for form, mu in itertools.product(("logits", "probabilities"), (0.0, 1e-300, 0.3, 1.0)):
            mixed = logits[:2].clone().requires_grad_()
            value, slope = gradient(mixup, logits, labels, mixed=mixed, pairs=pairs, mu=mu, form=form, variant=variant)  # type: ignore[arg-type]
            assert value.isfinite()
            assert slope.isfinite().all()


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("variant", ["paper", "released"])
def test_odd_batches(inside: bool, variant: str) -> None:
    logits, labels = few(8)
    logits = logits.float()
    cases = {
        "one row": (logits[:1], labels[:1]),
        "one class": (logits[:, :1], labels[:, :1]),
        "no positive": (logits, labels.clamp(max=0)),
        "all unknown": (logits, torch.zeros_like(labels)),
        "all present": (logits, torch.ones_like(labels)),
        "all absent": (logits, -torch.ones_like(labels)),
        "constant columns": (torch.full_like(logits, 0.3), labels),
        "zero head": (torch.zeros_like(logits), labels),
        "no row": (logits[:0], labels[:0]),
    }
    for case, (z, y) in cases.items():
        tau = adaptive_temperature(z, 2.0)
        assert (tau >= MIN_TAU).all(), case
        options = {"gamma": 0.85, "tau": tau, "positives_in_u": inside, "absent": "cross-entropy", "variant": variant}
        for no_positive in ("keep", "skip"):
            value, slope = gradient(variational, z, y, no_positive=no_positive, **options)  # type: ignore[arg-type]
            assert value.isfinite(), case
            assert slope.isfinite().all(), case
            assert slope.abs().max() <= 2 / MIN_TAU if len(z) else True, case


def test_temperature() -> None:
    z = torch.tensor([[0.0, 1.0, -8.0, 3.0], [0.2, 1.0, 8.0, 3.0], [0.1, 1.0, 1.0, 3.0 + 1e-5]], dtype=torch.float64)
    tau = adaptive_temperature(z.requires_grad_(), 2.0)
    assert tau.tolist() == pytest.approx([2 * math.sqrt(0.02 / 3), MIN_TAU, 1.0, MIN_TAU], rel=1e-12)
    assert not tau.requires_grad
    assert adaptive_temperature(z[:1], 2.0).tolist() == [1.0] * 4  # nothing to measure


def test_mixup_of_logits() -> None:
    """Eqs. 8-9 in a loop, with gradient through the targets and through the mixed images."""
    g = torch.Generator().manual_seed(3)
    logits, mixed = (torch.randn(n, 4, generator=g, dtype=torch.float64) for n in (6, 3))
    labels = torch.randint(-1, 2, (6, 4), generator=g)
    pairs = (torch.arange(3), torch.arange(3, 6))
    got = mixup(logits, labels, mixed, pairs, mu=0.2, reduction="sum").item()
    z, m = logits.numpy(), mixed.numpy()
    expected = 0.0
    for c in range(4):
        for n in range(3):
            mean = 0.2 * z[n, c] + 0.8 * z[n + 3, c]
            expected += 2 / 6 * (math.log(sigmoid(mean)) - math.log(sigmoid(m[n, c]))) ** 2
    assert got == pytest.approx(expected, rel=1e-12)
    assert mixup(logits, labels, mixed, pairs, mu=0.2).item() == pytest.approx(expected / 4, rel=1e-12)
    assert mixup(logits, labels, mixed, pairs, mu=0.2, reduction="none").shape == (4,)


@pytest.mark.parametrize(("variant", "eps"), [("paper", 0.0), ("released", 1e-10)])
def test_mixup_of_probabilities(variant: str, eps: float) -> None:
    g = torch.Generator().manual_seed(4)
    logits, mixed = (8 * torch.randn(n, 4, generator=g, dtype=torch.float64) for n in (7, 3))
    labels = torch.randint(-1, 2, (7, 4), generator=g)
    pairs = (torch.tensor([2, 0, 1]), torch.tensor([4, 5, 6]))
    got = mixup(logits, labels, mixed, pairs, mu=0.3, form="probabilities", variant=variant, reduction="sum").item()
    r = np.where(labels.numpy() == 1, 1.0, sigmoid(logits.numpy()))
    expected = 0.0
    for i, (a, b) in enumerate([(2, 4), (0, 5), (1, 6)]):
        for c in range(4):
            target = 0.3 * r[a, c] + 0.7 * r[b, c]
            expected += (math.log(target + eps) - math.log(sigmoid(mixed[i, c].item()) + eps)) ** 2 / 3
    assert got == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("form", ["logits", "probabilities"])
def test_mixup_gradient(form: str) -> None:
    logits, labels = example(4, 3)
    mixed = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pairs = (torch.tensor([1, 0]), torch.tensor([2, 3]))
    inputs = (logits.requires_grad_(), mixed.requires_grad_())
    assert torch.autograd.gradcheck(lambda z, m: mixup(z, labels, m, pairs, 0.3, form), inputs)


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("more", [{}, {"positives_in_u": False}, {"no_positive": "skip"}, {"reduction": "none"}])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_blocks_of_classes_make_no_difference(
    monkeypatch: pytest.MonkeyPatch, variant: str, more: dict[str, Any], dtype: torch.dtype
) -> None:
    logits, labels = few(classes=7)
    logits = logits.to(dtype)
    options: dict[str, Any] = {"gamma": 0.5, "absent": "cross-entropy", "variant": variant, **more}
    taus = [torch.linspace(0.3, 1, 7), torch.tensor([0.5]), torch.tensor(0.5), 0.5]
    whole = [gradient(variational, logits, labels, tau=tau, **options) for tau in taus]
    monkeypatch.setattr(pointwise, "ENTRIES_A_THREAD", 5)  # of a thread, of which there are two: two columns at a time
    for tau, expected in zip(taus, whole, strict=True):
        torch.testing.assert_close(gradient(variational, logits, labels, tau=tau, **options), expected)
        torch.testing.assert_close(variational(logits, labels, tau=tau, **options), expected[0])
    assert torch.equal(whole[1][0], whole[3][0])


def test_inputs_stay_and_shapes_are_checked() -> None:
    logits, labels = few()
    before, given = logits.clone(), labels.clone()
    variational(logits, labels, gamma=0.5, positives_in_u=False)
    mixup(logits, labels, logits[:2], (torch.tensor([0, 1]), torch.tensor([2, 3])), 0.4, "probabilities")
    assert torch.equal(logits, before)
    assert torch.equal(labels, given)
    with pytest.raises(LabelError, match="shape"):
        variational(logits, labels[:3])
    with pytest.raises(LabelError, match=r"\[N, C\]"):
        variational(logits[0], labels[0])


@pytest.mark.slow
@pytest.mark.parametrize("no_positive", ["keep", "skip"])
def test_graph_can_be_captured(no_positive: str) -> None:
    logits, labels = (t[:16] for t in few())
    logits = logits.float()
    torch._dynamo.reset()
    compiled = torch.compile(variational, backend="aot_eager", fullgraph=True)
    options = {"gamma": 0.5, "tau": adaptive_temperature(logits, 2.0), "positives_in_u": False}
    options["no_positive"] = no_positive
    for one, other in zip(
        gradient(compiled, logits, labels, **options),
        gradient(variational, logits, labels, **options),
        strict=True,  # type: ignore[arg-type]
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
