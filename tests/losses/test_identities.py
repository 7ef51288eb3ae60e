"""What the losses have in common: limits in which one becomes another."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pluralis.labels import Labels
from pluralis.losses import LOSSES, create_loss, functional
from tests.losses.check_loss import example, gradient


def same(one, other, logits=None, labels=None, rtol=1e-13):
    """Equal in value and in gradient."""
    if logits is None:
        logits, labels = example()
    for got, expected in zip(gradient(one, logits, labels), gradient(other, logits, labels), strict=True):
        torch.testing.assert_close(got, expected, rtol=rtol, atol=1e-16)


def test_losses_that_become_assume_negative():
    for other in (
        lambda z, y: functional.asl(z, y, 0.0, 0.0, 0.0),
        lambda z, y: functional.asl(z, y, 0.0, 0.0, 0.0, variant="released"),
        lambda z, y: 2 * functional.focal(z, y, gamma=0.0, alpha=0.5),
        lambda z, y: functional.an_ls(z, y, epsilon=0.0),
        lambda z, y: functional.n_ls(z, y, epsilon=0.0),
        lambda z, y: functional.dw(z, y, weight=1.0),
        lambda z, y: functional.ll_r(z, y, share=0.0),
        lambda z, y: functional.ll_ct(z, y, share=0.0),
        lambda z, y: create_loss("ll-r", delta=0.3)(z, y, epoch=0),
        lambda z, y: create_loss("ll-ct", delta=0.0)(z, y, epoch=5),
        lambda z, y: functional.csl(z, y, 0.0, 0.0, 0.0, likely=0),
        lambda z, y: create_loss("gr", pseudo=False, weights=False, robust=False)(z, y, epoch=1, epochs=2),
        lambda z, y: functional.bce(z, torch.where(y == 0, -1, y)),
        lambda z, y: torch.nn.functional.binary_cross_entropy_with_logits(z, (y > 0).double()),
    ):
        same(other, functional.an)


def test_wan_of_two_classes_is_assume_negative():
    logits, labels = (t[:, :2] for t in example())
    same(functional.wan, functional.an, logits, labels)
    same(functional.wan, functional.an, logits[:, :1], labels[:, :1])


def test_losses_that_leave_the_known_labels():
    def known(z, y):
        return functional.bce(z, y, reduction="sum") / y.numel()

    for other in (
        lambda z, y: functional.em(z, y, alpha=0.0),
        lambda z, y: functional.entmin(z, y, alpha=0.0),
        lambda z, y: functional.dw(z, y, weight=0.0),
        lambda z, y: functional.ll_r(z, y, share=1.0),
        lambda z, y: functional.partial_bce(z, y, alpha=0.0, beta=1.0),
        lambda z, y: functional.csl(z, y, 0.0, 0.0, 2.0, likely=7),
    ):
        same(other, known)


def test_partial_bce_of_complete_labels_is_bce():
    logits, labels = example()
    labels = torch.where(labels == 0, 1, labels)
    same(functional.partial_bce, functional.bce, logits, labels)


def test_gr_without_pseudo_labels_and_weights_is_an():
    for q in (0.0, 1e-13):
        same(
            lambda z, y, q=q: functional.gr(z, y, w=0.0, b=-1e3, mu=0.5, sigma=1e9, q1=q, q2=q, q3=q),
            functional.an,
            rtol=1e-11,
        )


def test_asl_without_a_margin_is_its_limit():
    same(
        lambda z, y: functional.asl(z, y, 1.0, 2.0, 1e-15), lambda z, y: functional.asl(z, y, 1.0, 2.0, 0.0), rtol=1e-10
    )


def test_entmin_is_em_upside_down():
    same(lambda z, y: functional.entmin(z, y, alpha=0.4), lambda z, y: functional.em(z, y, alpha=-0.4))


def test_splc_that_waits_is_hill_in_one_description():
    same(lambda z, y: functional.splc(z, y, correct=False, variant="hill"), functional.hill)
    loss = create_loss("splc", start_epoch=2, variant="hill")
    same(lambda z, y: loss(z, y, epoch=1), functional.hill)
    logits, labels = example()
    assert loss(logits, labels, epoch=2) == functional.splc(logits, labels, variant="hill")
    assert functional.splc(logits, labels, variant="hill") != functional.hill(logits, labels)


def test_splc_that_waits_is_focal_loss_by_its_authors():
    """Without a margin and without verified absent labels; then unknown labels above τ turn into present ones."""
    logits, labels = example()
    labels = labels.clamp(min=0)
    loss = create_loss("splc", margin=0.0)
    same(loss, lambda z, y: 2 * functional.focal(z, y, alpha=0.5), logits, labels)
    turned = torch.where((labels == 0) & (logits.sigmoid() > 0.6), 1, labels)
    assert (turned != labels).any()
    same(lambda z, y: loss(z, y, epoch=1), lambda z, y: loss(z, turned), logits, labels)


def test_expected_positives_are_free_of_charge():
    logits, _ = example()
    k = logits.sigmoid().sum() / len(logits)
    value, slope = gradient(lambda z, y: functional.epr(z, y, k=k), logits, torch.zeros_like(logits))
    assert value.item() == pytest.approx(0.0, abs=1e-28)
    assert slope.abs().max() < 1e-14
    more, pushed = gradient(lambda z, y: functional.epr(z, y, k=k - 0.7), logits, torch.zeros_like(logits))
    assert more.item() == pytest.approx((0.7 / 7) ** 2, rel=1e-12)
    assert (pushed > 0).all()  # too many are expected: every logit has to fall


def test_nnpu_is_upu_where_the_inner_risk_is_positive():
    logits, labels = example()
    small = 0.1
    same(lambda z, y: functional.nnpu(z, y, small), lambda z, y: functional.upu(z, y, small), logits, labels)
    # A class whose positives are sure and whose other images are surely absent has a negative inner risk.
    sure = torch.where(labels > 0, 8.0, -8.0).double()
    bounded, slope = gradient(lambda z, y: functional.nnpu(z, y, 0.9), sure, labels)
    assert bounded > 0 > functional.upu(sure, labels, 0.9)
    assert (slope[labels == 0].abs() < 1e-30).all()
    assert (slope[labels < 0] > 0).all()


def test_priors_of_classes_are_those_of_their_columns():
    logits, labels = example()
    priors = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], dtype=torch.float64)
    for loss in (functional.upu, functional.nnpu):
        alone = [loss(logits[:, c : c + 1], labels[:, c : c + 1], float(priors[c])) for c in range(7)]
        torch.testing.assert_close(loss(logits, labels, priors), torch.stack(alone).mean(), rtol=1e-13, atol=0)


def test_large_losses_are_counted_in_epochs():
    """A tenth of the entries more in each epoch, never more than are unknown, and never a known one."""
    logits, labels = example(10, 10)
    unknown = int((labels == 0).sum())
    reject, correct = create_loss("ll-r", delta=0.1), create_loss("ll-ct", delta=0.1)
    for epoch in (0, 1, 3, 9, 20):
        share = reject.delta * epoch
        zero = functional.ll_r(logits, labels, share, reduction="none") == 0
        assert int(zero.sum()) == min(10 * epoch, unknown)
        assert (labels[zero] == 0).all()
        assert reject(logits, labels, epoch=epoch) == functional.ll_r(logits, labels, share)
        as_if = torch.where(zero, 1, labels)
        torch.testing.assert_close(
            correct(logits, labels, epoch=epoch), functional.an(logits, as_if), rtol=1e-13, atol=0
        )


def test_ties_do_not_reject_more_than_asked():
    each = functional.ll_r(torch.zeros(10, 10), torch.zeros(10, 10), share=0.03, reduction="none")
    assert int((each == 0).sum()) == 3


@pytest.mark.parametrize("kind", ["plain", "few unknown", "equal", "sorted", "half precision"])
def test_a_large_batch_is_searched_as_a_small_one(kind):
    """The search through a sample finds exactly what the search in all finds."""
    from pluralis.losses.large_loss import largest_unknown

    g = torch.Generator().manual_seed(0)
    z = torch.randn(600, 1000, generator=g)
    unknown = torch.rand(600, 1000, generator=g) < (0.001 if kind == "few unknown" else 0.9)
    if kind == "equal":
        z.zero_()
    elif kind == "sorted":
        z = z.flatten().sort(descending=True).values.reshape(z.shape)
    elif kind == "half precision":
        z = z.bfloat16()
    for k in (1, 100, 3000, 200_000):
        found = largest_unknown(z, unknown, k)
        assert len(found.unique()) == k
        expected = z[unknown].float().topk(min(k, int(unknown.sum()))).values
        got = z.flatten()[found].float()[unknown.flatten()[found]].sort(descending=True).values
        assert torch.equal(got, expected)


def test_bce_of_nothing_is_zero_with_a_graph():
    value, slope = gradient(functional.bce, torch.randn(3, 4), torch.zeros(3, 4))
    assert value == 0
    assert (slope == 0).all()


def test_digits_survive_in_single_precision():
    z = torch.tensor([[-12.0, 30.0, -30.0]])
    wide = functional.em(z.double(), torch.zeros(1, 3), reduction="none")
    torch.testing.assert_close(functional.em(z, torch.zeros(1, 3), reduction="none").double(), wide, rtol=1e-6, atol=0)
    value, slope = gradient(functional.an, z[:, 1:2], torch.ones(1, 1))
    assert value.item() == pytest.approx(np.exp(-30), rel=1e-6)
    assert slope.item() == pytest.approx(-np.exp(-30), rel=1e-6)


def test_every_loss_learns():
    """Descent on the logits themselves: known labels end up on their side."""
    labels = torch.tensor([[1, 0, -1, 0], [0, 1, 0, -1], [-1, 0, 1, 0]] * 4)
    start = torch.linspace(-1, 1, 48).reshape(12, 4)
    for name in LOSSES:
        loss = create_loss(name)
        loss.start(Labels.from_dense(labels.numpy()))
        z = start.clone().requires_grad_()
        for step in range(60):
            (slope,) = torch.autograd.grad(loss(z, labels, epoch=1 if step else 0, epochs=2) * z.numel(), z)
            z = (z - 0.5 * slope).detach().requires_grad_()
        assert (z[labels > 0] > start[labels > 0]).all(), name
        assert z[labels > 0].mean() > z[labels < 0].mean() + 1, name
