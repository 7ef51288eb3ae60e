"""One set of checks for every loss: `check_loss(spec)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from pluralis.errors import LabelError, RecipeError
from pluralis.losses import pointwise, selection_one

HALF_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Spec:
    """A loss and its formula.

    `reference(z, y, frozen)` gives the loss of each entry in numpy; what the formula holds constant, and what it
    selects by comparing, is computed from `frozen`, so that a derivative by `z` leaves it alone.

    `detached`: something is held constant. `whole`: an entry has no loss of its own; `reference` gives the value for
    the batch, and there is no other reduction. `rows`: it is a row that has a loss, in `reference` and for "none".
    `over_known`: the mean runs over known entries, not all. `pull`: the
    derivative of a positive with a logit of −1e4; `fades`: the formula itself takes it away. `coupled`: the mean of the
    parts of a batch is not the mean of the batch. `soft`: known labels have targets inside (0, 1), so that a large
    logit is pulled back. `weighed`: the loss takes targets and weights in the place of labels.
    """

    name: str
    loss: Callable[..., Tensor]
    reference: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    detached: bool = False
    whole: bool = False
    rows: bool = False
    over_known: bool = False
    pull: float = -1.0
    fades: bool = False
    coupled: bool = False
    soft: bool = False
    weighed: bool = False

    @property
    def reductions(self) -> list[dict[str, str]]:
        return [{}] if self.whole else [{"reduction": r} for r in ("mean", "sum", "none")]

    @property
    def total(self) -> dict[str, str]:
        """The sum, or the mean where there is nothing else."""
        return {} if self.whole else {"reduction": "sum"}


def check_loss(spec: Spec) -> None:
    _matches_the_formula(spec)
    _gradcheck(spec)
    _finite_for_large_logits(spec)
    _finite_for_odd_batches(spec)
    _follows_permutations(spec)
    _leaves_no_trace(spec)
    _reductions_agree(spec)
    _blocks_make_no_difference(spec)
    _label_types_make_no_difference(spec)
    _other_labels_are_refused(spec)
    second_derivatives_are_right_or_refused(spec.loss)
    _parts_add_up(spec)


def example(rows: int = 24, classes: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits between −5 and 5, where plain numpy keeps its digits, and labels of all three kinds."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.rand(rows, classes, generator=g, dtype=torch.float64) * 10 - 5
    labels = torch.randint(-1, 2, (rows, classes), generator=g, dtype=torch.int8)
    return logits, labels


def gradient(loss: Callable[..., Tensor], logits: Tensor, labels: Tensor, **options: str) -> tuple[Tensor, Tensor]:
    leaf = logits.detach().clone().requires_grad_()
    value = loss(leaf, labels, **options)
    assert value.requires_grad, "the graph is cut"
    value.sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.dtype == logits.dtype
    return value.detach(), leaf.grad


def _matches_the_formula(spec: Spec) -> None:
    logits, labels = example()
    z, y = logits.numpy(), labels.numpy()
    count = 1 if spec.whole else np.count_nonzero(y) if spec.over_known else y.size
    entries = np.asarray(spec.reference(z, y, z))
    value, slope = gradient(spec.loss, logits, labels)
    np.testing.assert_allclose(value.item(), entries.sum() / count, rtol=1e-12)
    np.testing.assert_allclose(slope.numpy(), _slopes(spec, z, y) / count, rtol=1e-12, atol=1e-18)
    if not spec.whole:
        each = spec.loss(logits, labels, reduction="none")
        np.testing.assert_allclose(each.numpy(), entries, rtol=1e-12, atol=1e-16)


def _slopes(spec: Spec, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A complex step of 1e-30 gives the derivative to the last digit, without the cancellation of a difference."""
    if not spec.whole and not spec.rows:
        return spec.reference(z + 1e-30j, y, z).imag / 1e-30
    slopes = np.empty_like(z)
    if spec.rows:
        for column in range(z.shape[1]):
            slopes[:, column] = spec.reference(z + 1e-30j * (np.arange(z.shape[1]) == column), y, z).imag / 1e-30
        return slopes
    for at in np.ndindex(z.shape):
        moved = z.astype(complex)
        moved[at] += 1e-30j
        slopes[at] = spec.reference(moved, y, z).imag / 1e-30
    return slopes


def _gradcheck(spec: Spec) -> None:
    if spec.detached:
        return  # differences would see the constants move; the complex step above is the check
    logits, labels = example(4, 5)
    leaf = logits.requires_grad_()
    for options in spec.reductions:
        assert torch.autograd.gradcheck(lambda z, o=options: spec.loss(z, labels, **o), leaf)


def _finite_for_large_logits(spec: Spec) -> None:
    rows = torch.tensor([1e4, -1e4, 100.0, -100.0, 20.0, -20.0, 0.0]).repeat(3, 1)
    labels = torch.tensor([1, 0, -1], dtype=torch.int8)[:, None].expand(3, 7).contiguous()
    scale = rows.numel() if spec.whole else 1
    for dtype in HALF_AND_SINGLE:
        for autocast in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                value, slope = gradient(spec.loss, rows.to(dtype), labels, **spec.total)
            assert value.isfinite(), (spec.name, dtype)
            assert slope.isfinite().all(), (spec.name, dtype)
            if not spec.fades:
                exact = torch.tensor(spec.pull / scale, dtype=dtype)
                torch.testing.assert_close(slope[0, 1], exact, msg="a positive at −1e4 lost its gradient")
            assert spec.soft or slope[2, 0] >= 0
            assert spec.soft or slope[0, 0] <= 0
    # The scale of a mixed-precision trainer starts at 2^16, beyond float16: it must meet the derivative in float32.
    leaf = torch.full((2, 3), 3.0, dtype=torch.float16, requires_grad=True)
    ones = torch.ones(2, 3)
    (spec.loss(leaf, ones, **spec.total) * 2.0**16).backward()
    _, expected = gradient(spec.loss, torch.full((2, 3), 3.0), ones, **spec.total)
    assert leaf.grad is not None
    torch.testing.assert_close(leaf.grad.float(), expected * 2**16, rtol=2e-3, atol=0)


def _finite_for_odd_batches(spec: Spec) -> None:
    logits, labels = (t[:8] for t in example())
    cases = {
        "one row": (logits[:1], labels[:1]),
        "one class": (logits[:, :1], labels[:, :1]),
        "one entry": (logits[:1, :1], labels[:1, :1]),
        "no positive": (logits, labels.clamp(max=0)),
        "all unknown": (logits, torch.zeros_like(labels)),
        "all present": (logits, torch.ones_like(labels)),
        "constant column": (logits * torch.tensor([0, 1, 1, 1, 1, 1, 1]), labels),
        "no row": (logits[:0], labels[:0]),
    }
    for case, (z, y) in cases.items():
        value, slope = gradient(spec.loss, z, y)
        assert value.isfinite(), (spec.name, case)
        assert slope.isfinite().all(), (spec.name, case)


def _follows_permutations(spec: Spec) -> None:
    logits, labels = example()
    value, slope = gradient(spec.loss, logits, labels)
    for dim in (0, 1):
        order = torch.randperm(logits.shape[dim], generator=torch.Generator().manual_seed(1))
        moved, moved_slope = gradient(spec.loss, logits.index_select(dim, order), labels.index_select(dim, order))
        torch.testing.assert_close(moved, value, rtol=1e-13, atol=0)
        torch.testing.assert_close(moved_slope, slope.index_select(dim, order), rtol=1e-13, atol=0)
    _, strided = gradient(spec.loss, *(t.t().contiguous().t() for t in (logits, labels)))
    torch.testing.assert_close(strided, slope, rtol=1e-13, atol=0)


def _leaves_no_trace(spec: Spec) -> None:
    logits, labels = example()
    before, given = logits.clone(), labels.clone()
    for grad_mode in (True, False):
        with torch.set_grad_enabled(grad_mode):
            value = spec.loss(logits.requires_grad_(), labels)
            assert torch.is_grad_enabled() is grad_mode
            assert value.requires_grad is grad_mode
    assert torch.equal(logits.detach(), before)
    assert torch.equal(labels, given)
    leaf = before.clone().requires_grad_()
    value = spec.loss(leaf, labels)
    value.backward(retain_graph=True)
    once = leaf.grad.clone()
    value.backward()
    torch.testing.assert_close(leaf.grad, 2 * once, rtol=1e-15, atol=0)


def _reductions_agree(spec: Spec) -> None:
    if spec.whole:
        return
    logits, labels = example()
    count = int(labels.count_nonzero()) if spec.over_known else labels.numel()
    mean, mean_slope = gradient(spec.loss, logits, labels, reduction="mean")
    total, sum_slope = gradient(spec.loss, logits, labels, reduction="sum")
    each, each_slope = gradient(spec.loss, logits, labels, reduction="none")
    assert each.shape == (logits.shape[:1] if spec.rows else logits.shape)
    torch.testing.assert_close(each.sum(), total, rtol=1e-13, atol=0)
    torch.testing.assert_close(mean * count, total, rtol=1e-13, atol=0)
    torch.testing.assert_close(each_slope, sum_slope, rtol=0, atol=0)
    torch.testing.assert_close(mean_slope * count, sum_slope, rtol=1e-13, atol=0)


def _blocks_make_no_difference(spec: Spec) -> None:
    logits, labels = example(23, 11)
    for options in spec.reductions:
        whole, whole_slope = gradient(spec.loss, logits, labels, **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(selection_one, "TOGETHER", 100)
            for entries in (15, 40):  # of a thread, of which there are at least two
                patch.setattr(pointwise, "ENTRIES_A_THREAD", entries)
                parts, parts_slope = gradient(spec.loss, logits, labels, **options)
                torch.testing.assert_close(parts, whole, rtol=1e-13, atol=1e-16)
                torch.testing.assert_close(parts_slope, whole_slope, rtol=1e-13, atol=1e-16)
    copies = 3600  # many real blocks
    many, many_slope = gradient(spec.loss, logits.float().repeat(copies, 1), labels.repeat(copies, 1))
    one, one_slope = gradient(spec.loss, logits, labels)
    torch.testing.assert_close(many.double(), one, rtol=1e-5, atol=0)
    torch.testing.assert_close(many_slope[-23:].double() * copies, one_slope, rtol=1e-5, atol=1e-9)


def _label_types_make_no_difference(spec: Spec) -> None:
    logits, labels = example()
    value = spec.loss(logits, labels)
    for dtype in (torch.int16, torch.int64, torch.float32, torch.float64, torch.bfloat16):
        assert torch.equal(spec.loss(logits, labels.to(dtype)), value), dtype
    present = labels.clamp(min=0)
    for dtype in (torch.bool, torch.uint8):
        assert torch.equal(spec.loss(logits, present.to(dtype)), spec.loss(logits, present)), dtype


def _other_labels_are_refused(spec: Spec) -> None:
    if spec.weighed:
        return
    logits, labels = example()
    wrong = [labels.float().index_put((torch.tensor([2]), torch.tensor([3])), torch.tensor(v)) for v in (0.3, np.nan)]
    for given in (*wrong, labels.int() * 2, labels.to(torch.uint8)):  # which makes 255 of −1
        for z in (logits, logits.clone().requires_grad_()):
            with pytest.raises(LabelError, match=r"label of row \d+, class \d+ is (0.3|nan|-?2|255).*0 unknown"):
                spec.loss(z, given)


def second_derivatives_are_right_or_refused(loss: Callable[..., Tensor]) -> bool:
    """A penalty on the gradient, as many regularisers are; true if it can be had."""
    logits, labels = example(4, 5)
    leaf, refused = logits.requires_grad_(), None
    try:
        (slope,) = torch.autograd.grad(loss(leaf, labels), leaf, create_graph=True)
    except RecipeError as error:
        refused = str(error)
    if refused is not None:
        assert "has no second derivative" in refused
        return False
    (curve,) = torch.autograd.grad(slope.square().sum(), leaf)
    moved = (logits.detach() + step * slope.detach() for step in (1e-4, -1e-4))
    ahead, back = (gradient(loss, z, labels)[1] for z in moved)
    torch.testing.assert_close(curve, (ahead - back) / 1e-4, rtol=1e-5, atol=1e-9)
    return True


def _parts_add_up(spec: Spec) -> None:
    """Two processes with half of the batch each give the gradient of one with the whole of it."""
    logits, labels = example()
    whole, slope = gradient(spec.loss, logits, labels)
    halves = [gradient(spec.loss, z, y) for z, y in zip(logits.split(12), labels.split(12), strict=True)]
    mean = torch.stack([value for value, _ in halves]).mean()
    if spec.coupled:
        assert not torch.isclose(mean, whole, rtol=1e-6), f"{spec.name} is not coupled: say so"
        return
    torch.testing.assert_close(mean, whole, rtol=1e-13, atol=0)
    torch.testing.assert_close(torch.cat([s / 2 for _, s in halves]), slope, rtol=1e-13, atol=0)
