"""The unified framework: each column of its table is the loss that it stands for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pluralis.labels import Labels
from pluralis.losses import Framework, functional
from pluralis.method import Batch, Clock, Setup
from pluralis.methods.em_apl import EmApl
from pluralis.methods.en import ExpectedNegatives
from tests.losses import references
from tests.losses.check_loss import HALF_AND_SINGLE, example, gradient, second_derivatives_are_right_or_refused
from tests.losses.test_identities import same

GR = {"w": 3.0, "b": -2.5, "mu": 0.7, "sigma": 0.6, "q1": 0.01, "q2": 0.2, "q3": 1.0}


@pytest.mark.parametrize(
    ("framework", "loss"),
    [
        (Framework.en(tau=1.0), functional.an),
        (Framework.en(tau=0.0), lambda z, y: functional.dw(z, y, weight=0.0)),
        (Framework.em(alpha=0.3), lambda z, y: functional.em(z, y, alpha=0.3)),
        (Framework.hill(), lambda z, y: functional.hill(z, y, margin=0.0, gamma=0.0)),
        (Framework.splc(tau=0.7, gamma=1.5), lambda z, y: functional.splc(z, y, tau=0.7, gamma=1.5, variant="hill")),
        (Framework.gr(**GR), lambda z, y: functional.gr(z, y, **GR)),
        (Framework.gr(q1=0.0, q2=0.0, q3=0.0), lambda z, y: functional.gr(z, y, q1=0.0, q2=0.0, q3=0.0)),
    ],
    ids=["en is an", "en of nothing", "em", "hill", "splc", "gr", "gr of logarithms"],
)
def test_a_column_is_its_loss(framework, loss):
    same(framework, loss, rtol=1e-12)


def test_second_derivatives_are_right():
    assert second_derivatives_are_right_or_refused(Framework.hill())
    assert not second_derivatives_are_right_or_refused(functional.hill)


def test_expected_negatives_by_hand():
    logits, labels = example()
    z, y = logits.numpy(), labels.numpy()
    p, tau = references.sigmoid(z), np.linspace(0.1, 0.9, 7)  # one for each class
    entries = references.by_label(y, references.up(z), references.down(z), np.where(p <= tau, references.down(z), 0))
    got = Framework.en(tau=torch.from_numpy(tau))(logits, labels, reduction="none")
    np.testing.assert_allclose(got.numpy(), entries, rtol=1e-12)


def test_asymmetric_pseudo_labels_by_hand():
    """Zhou et al., Eq. 8: soft labels p̂ below τ, held constant; the entropy above."""
    logits, labels = example()
    z, y = logits.numpy(), labels.numpy()

    def reference(z, frozen, alpha=0.2, beta=0.7, tau=0.4):
        p, soft = references.sigmoid(z), references.sigmoid(frozen)
        entropy = p * references.up(z) + (1 - p) * references.down(z)
        pseudo = soft * references.up(z) + (1 - soft) * references.down(z)
        unknown = np.where(soft <= tau, beta * pseudo, -alpha * entropy)
        return references.by_label(y, references.up(z), references.down(z), unknown)

    value, slope = gradient(Framework.em(alpha=0.2, beta=0.7, tau=0.4), logits, labels)
    np.testing.assert_allclose(value.item(), reference(z, z).mean(), rtol=1e-12)
    slopes = reference(z + 1e-30j, z).imag / 1e-30
    np.testing.assert_allclose(slope.numpy(), slopes / y.size, rtol=1e-12, atol=1e-16)


def ranked(seed=0):
    """Logits whose probabilities are multiples of 1/128, no two alike in a class, and labels of all three kinds."""
    g = torch.Generator().manual_seed(seed)
    p = torch.stack([torch.randperm(127, generator=g)[:60] + 1 for _ in range(5)], 1) / 128  # exact in half precision
    dense = torch.randint(-2, 3, (60, 5), generator=g).clamp_(-1, 1).mul_(torch.rand(60, 5, generator=g) < 0.5)
    return p.logit(), dense.to(torch.int8)


def line(logits, chosen):
    """The threshold [C] of each class that a ranking amounts to; below all where it chose none."""
    return torch.where(chosen, logits.sigmoid(), -1.0).amax(0)


def test_expected_negatives_are_those_of_the_method():
    """A ranking that takes the lowest predictions is a threshold for each class."""
    logits, dense = ranked()
    method = ExpectedNegatives(Setup(torch.nn.Identity, 5, Labels.from_dense(dense.numpy())), k=2.5)
    method.score.copy_(logits.sigmoid())
    method.start_epoch(Clock(epoch=1, epochs=2), lambda: logits)
    assert 0 < method.figures()["expected negatives"] < (dense == 0).sum()
    leaf = logits.clone().requires_grad_()
    loss = method(Batch((leaf,), dense, torch.arange(60)), Clock(epoch=1, epochs=2))["loss"]
    value, slope = gradient(Framework.en(tau=line(logits, method.negative)), logits, dense)
    torch.testing.assert_close(loss, value)
    torch.testing.assert_close(torch.autograd.grad(loss, leaf)[0], slope)


def test_asymmetric_pseudo_labels_are_those_of_the_method():
    logits, dense = ranked(seed=1)
    setup = Setup(torch.nn.Identity, 5, Labels.from_dense(dense.numpy()))
    method = EmApl(setup, alpha=0.2, beta=0.7, theta=0.6, warmup=0)
    method.start_epoch(Clock(epochs=1), lambda: logits)
    chosen = method.guesses.since != 0
    assert 0 < chosen.sum() < (dense == 0).sum()
    leaf = logits.clone().requires_grad_()
    loss = method(Batch((leaf,), dense, torch.arange(60)), Clock(epochs=1))["loss"]
    value, slope = gradient(Framework.em(alpha=0.2, beta=0.7, tau=line(logits, chosen)), logits, dense)
    torch.testing.assert_close(loss, value, rtol=1e-5, atol=0)
    torch.testing.assert_close(torch.autograd.grad(loss, leaf)[0], slope, rtol=1e-4, atol=1e-8)


def test_parts_can_be_exchanged():
    """GR's pseudo-label with Hill's losses: nothing but the parts matters."""
    gr, hill = Framework.gr(w=3.0, b=-2.0), Framework.hill()
    mixed = Framework(gr.k, gr.v, hill.loss1, hill.loss2, hill.loss3)
    logits, labels = example()
    z, p = logits.numpy(), references.sigmoid(logits.numpy())
    k, v = references.sigmoid(3 * p - 2), np.exp(-((p - 0.5) ** 2) / 8)
    unknown = v * (k * references.up(z) + (1 - k) * (1.5 - p) * p**2)
    entries = references.by_label(labels.numpy(), references.up(z), references.down(z), unknown)
    np.testing.assert_allclose(mixed(logits, labels, reduction="none").numpy(), entries, rtol=1e-12)
    assert mixed(logits, labels, reduction="sum").item() == pytest.approx(entries.sum(), rel=1e-12)


@pytest.mark.parametrize("name", ["en", "em", "hill", "splc", "gr"])
def test_large_logits_are_finite(name):
    framework = Framework.en(tau=0.5) if name == "en" else getattr(Framework, name)()
    rows = torch.tensor([1e4, -1e4, 100.0, -100.0, 0.0]).repeat(3, 1)
    labels = torch.tensor([[1], [0], [-1]]).expand(3, 5)
    for dtype in HALF_AND_SINGLE:
        value, slope = gradient(framework, rows.to(dtype), labels)
        assert value.isfinite()
        assert slope.isfinite().all()
    assert gradient(framework, torch.zeros(0, 3), torch.zeros(0, 3))[0] == 0
