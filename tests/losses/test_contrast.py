"""The contrast of label-wise embeddings, against loops over all pairs in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.errors import LabelError, RecipeError
from pluralis.losses.contrast import label_contrast

FORMS = ["paper", "without twins", "released"]
Example = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def example(a: int, k: int, classes: int = 4, seed: int = 0, empty: bool = True) -> Example:
    """Anchors, their classes, a queue, its classes, twins."""
    generator = torch.Generator().manual_seed(seed)
    z = F.normalize(torch.randn(2 * a + k, 6, generator=generator, dtype=torch.float64), dim=1)
    kinds = torch.randint(-1 if empty else 0, classes, (a + k,), generator=generator)
    return z[:a], kinds[:a], z[a : a + k], kinds[a:], z[a + k :]


def contrast(
    form: str, x: Tensor, classes: Tensor, queue: Tensor, kinds: Tensor, twins: Tensor, **settings: Any
) -> Tensor:
    if form == "released":
        return label_contrast(x, classes, queue, kinds, variant="released", **settings)
    return label_contrast(x, classes, queue, kinds, twins=twins if form == "paper" else None, **settings)


def loops(
    form: str, x: Tensor, classes: Tensor, queue: Tensor, kinds: Tensor, twins: Tensor, tau: float, entries: int = 1
) -> Tensor:
    """Eq. 7 as it is printed, one pair after the other and with gradients, or the released form."""
    z = [F.normalize(row, dim=0) for row in x]
    every, labels = [*z, *queue], [*classes.tolist(), *kinds.tolist()]
    by_anchor = []
    for k, anchor in enumerate(z):
        below, terms = torch.tensor(0.0, dtype=torch.float64), []
        for t, other in enumerate(every):
            taken = labels[k] >= 0 and labels[t] >= 0
            if taken and (t != k if form == "released" else labels[t] != labels[k]):
                below = below + torch.exp(anchor @ other / tau)
        for k2, other in enumerate(every):
            if labels[k2] != labels[k] or labels[k] < 0 or below == 0:
                continue
            if k2 != k:
                terms.append(-torch.log(torch.exp(anchor @ other / tau) / below))
            elif form == "paper":
                terms.append(-torch.log(torch.exp(anchor @ F.normalize(twins[k], dim=0) / tau) / below))
        if terms:
            by_anchor.append(sum(terms) / len(terms) if form == "released" else sum(terms))
    total = sum(by_anchor) + 0 * (x.sum() + twins.sum())
    return total / (max(len(by_anchor), 1) if form == "released" else entries)  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("a", "k", "classes"), [(12, 30, 4), (5, 0, 2), (1, 9, 3), (20, 3, 20), (8, 8, 1), (1, 0, 1)])
def test_value_and_gradient_are_those_of_the_formula(form: str, a: int, k: int, classes: int) -> None:
    for seed in range(3):
        x, kinds, queue, its, twins = example(a, k, classes, seed)
        x = (x * torch.linspace(0.5, 4, a)[:, None]).requires_grad_()
        twins = (twins * torch.linspace(3, 0.2, a)[:, None]).requires_grad_()
        found = contrast(form, x, kinds, queue, its, twins, temperature=0.3, entries=7 * a)
        wanted = loops(form, x, kinds, queue, its, twins, 0.3, 7 * a)
        assert found.item() == pytest.approx(wanted.item(), rel=1e-12, abs=1e-14)
        given = [x, twins] if form == "paper" else [x]
        slopes = torch.autograd.grad(2 * found, given), torch.autograd.grad(2 * wanted, given)
        for one, other in zip(*slopes, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
        assert (wanted.item() != 0) == (slopes[1][0].any().item())


@pytest.mark.parametrize("form", FORMS)
def test_gradient_is_that_of_finite_differences(form: str) -> None:
    x, classes, queue, kinds, twins = example(7, 9, 3)
    x, twins = (3 * x).requires_grad_(), (2 * twins).requires_grad_(form == "paper")
    assert torch.autograd.gradcheck(
        lambda x, twins: 3 * contrast(form, x, classes, queue, kinds, twins, temperature=0.4), (x, twins)
    )


@pytest.mark.parametrize("form", FORMS)
def test_length_does_not_matter_and_the_gradient_is_that_of_normalising(form: str) -> None:
    """Also of rows of length 0 or nearly so, whose direction is no direction."""
    x, classes, queue, kinds, twins = example(7, 9, 3, empty=False)
    lengths = torch.tensor([1.0, 20.0, 1e-3, 0.0, 1e-14, 3.0, 1e-9], dtype=torch.float64)[:, None]
    x, twins = (x * lengths).requires_grad_(), (twins * lengths.roll(1, 0)).requires_grad_()
    found = contrast(form, x, classes, queue, kinds, twins, temperature=0.4)
    wanted = loops(form, x, classes, queue, kinds, twins, 0.4, 7)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
    for given in [x, twins] if form == "paper" else [x]:
        (one,), (other,) = (torch.autograd.grad(value, given, retain_graph=True) for value in (found, wanted))
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
        assert other.any(1).tolist() == [given is x or bool(row.any()) for row in x]


def test_a_class_that_is_chosen_once_has_its_twin_and_nobody_is_the_rival_of_a_twin() -> None:
    x, (twin, rival) = torch.eye(3), torch.eye(3)[[1, 2]]
    nothing = torch.empty(0, 3), torch.empty(0, dtype=torch.long)
    # Each has no partner but its twin, at similarities 0 and 1, and the other as its rival, at 0.
    found = label_contrast(x[:2], torch.tensor([4, 7]), *nothing, 0.5, 10, twins=torch.stack([rival, twin]))
    assert found.item() == pytest.approx((0 - 2) / 10)


def test_by_default_it_is_divided_by_the_anchors() -> None:
    z, classes, queue, kinds, twins = example(6, 5, empty=False)
    one, other = (label_contrast(z, classes, queue, kinds, entries=n, twins=twins).item() for n in (None, 6))
    assert one == pytest.approx(other, rel=1e-14)


@pytest.mark.parametrize("form", FORMS)
def test_order_does_not_matter(form: str) -> None:
    z, classes, queue, kinds, twins = example(9, 14)
    p, q = torch.randperm(9), torch.randperm(14)
    found = contrast(form, z[p], classes[p], queue[q], kinds[q], twins[p])
    assert found.item() == pytest.approx(contrast(form, z, classes, queue, kinds, twins).item(), rel=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_empty_places_take_no_part(form: str) -> None:
    z, classes, queue, kinds, twins = example(9, 14, empty=False)
    whole = contrast(form, z, classes, queue, kinds, twins, entries=9)
    pad, none = F.normalize(torch.randn(5, 6, dtype=torch.float64), dim=1), torch.full((5,), -1)
    filled = (torch.cat(pair) for pair in ((z, pad), (classes, none), (pad, queue), (none, kinds), (twins, pad)))
    padded = contrast(form, *filled, entries=9)
    assert padded.item() == pytest.approx(whole.item(), rel=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("classes", "kinds"),
    [
        ([], []),  # nothing at all
        ([], [0, 1]),  # no anchor
        ([2], []),  # one anchor alone
        ([-1, -1], [-1, -1]),  # all unknown
        ([2], [0, 1]),  # no partner but the twin
        ([0, 1, 2], [3, -1]),  # every class once
    ],
)
def test_nothing_to_contrast_is_a_zero_with_a_gradient(form: str, classes: list[int], kinds: list[int]) -> None:
    z, twins = (F.normalize(torch.randn(len(classes), 6), dim=1).requires_grad_() for _ in range(2))
    queue = F.normalize(torch.randn(len(kinds), 6), dim=1)
    loss = contrast(form, z, torch.tensor(classes).long(), queue, torch.tensor(kinds).long(), twins)
    loss.backward()
    something = form == "paper" and len(classes) > 0 and 0 in kinds + classes
    assert (loss.item() != 0) == something
    for given in [z, twins] if form == "paper" else [z]:
        assert given.grad is not None
        assert given.grad.any() == something


def test_one_class_alone_has_no_fraction_in_the_paper() -> None:
    z = F.normalize(torch.randn(4, 6), dim=1).requires_grad_()
    classes, nothing = torch.zeros(4, dtype=torch.long), (torch.empty(0, 6), torch.empty(0, dtype=torch.long))
    assert label_contrast(z, classes, *nothing).item() == 0
    assert label_contrast(z, classes, *nothing, twins=-z).item() == 0
    released = label_contrast(z, classes, *nothing, variant="released")
    assert released.item() > 0
    released.backward()
    assert torch.isfinite(z.grad).all()  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_sharp_temperature_and_autocast_stay_finite(form: str, dtype: torch.dtype) -> None:
    z, classes, queue, kinds, twins = example(12, 20)
    z = torch.cat([z, z[:1], -z[:1]]).to(dtype).requires_grad_()  # equal and opposite ones too
    twins = torch.cat([twins, z[:1].detach(), z[:1].detach()]).to(dtype).requires_grad_()
    classes = torch.cat([classes, classes[:1], classes[:1]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = contrast(form, z, classes, queue.float(), kinds, twins, temperature=0.01)
    loss.backward()
    expected = loops(form, z.detach().double(), classes, queue, kinds, twins.detach().double(), 0.01, 14)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    assert torch.isfinite(z.grad).all()  # type: ignore[arg-type]
    assert form != "paper" or torch.isfinite(twins.grad).all()  # type: ignore[arg-type]


def test_inputs_and_queue_are_left_alone() -> None:
    given = example(6, 5)
    before = [t.clone() for t in given]
    z, queue, twins = given[0].requires_grad_(), given[2].requires_grad_(), given[4]
    label_contrast(z, given[1], queue, given[3], twins=twins).backward()
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))
    assert queue.grad is None


def test_wrong_calls() -> None:
    z, classes, queue, kinds, twins = example(6, 5)
    with pytest.raises(LabelError, match="6 anchors have 5 classes"):
        label_contrast(z, classes[:5], queue, kinds)
    with pytest.raises(LabelError, match=r"\(6, 6\) and queued embeddings \(5, 4\)"):
        label_contrast(z, classes, queue[:, :4], kinds)
    with pytest.raises(LabelError, match=r"\(6, 6\) and their twins \(5, 6\)"):
        label_contrast(z, classes, queue, kinds, twins=twins[:5])
    with pytest.raises(LabelError, match="released variant has no twins"):
        label_contrast(z, classes, queue, kinds, variant="released", twins=twins)
    with pytest.raises(RecipeError, match="paper, released"):
        label_contrast(z, classes, queue, kinds, variant="other")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_classes_of_any_integer_dtype(dtype: torch.dtype) -> None:
    x, kinds = torch.randn(26, 6, generator=torch.Generator().manual_seed(0)), torch.arange(26) % 3
    queue = F.normalize(x[6:], dim=1)
    expected = label_contrast(x[:6], kinds[:6], queue, kinds[6:])
    assert label_contrast(x[:6], kinds[:6].to(dtype), queue, kinds[6:].to(dtype)) == expected


@pytest.mark.parametrize("form", FORMS)
def test_a_second_derivative_is_refused(form: str) -> None:
    x, *rest = example(6, 9)
    leaf = x.clone().requires_grad_()
    with pytest.raises(RecipeError, match="no second derivative"):
        torch.autograd.grad(contrast(form, leaf, *rest), leaf, create_graph=True)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_graph_can_be_captured(form: str) -> None:
    x, classes, queue, kinds, twins = (t.float() if t.is_floating_point() else t for t in example(12, 30))
    torch._dynamo.reset()
    compiled = torch.compile(contrast, backend="aot_eager", fullgraph=True)
    values, slopes = [], []
    for function in (compiled, contrast):
        inputs = x.clone().requires_grad_(), twins.clone().requires_grad_()
        value = function(form, inputs[0], classes, queue, kinds, inputs[1], temperature=0.4, entries=50)
        values.append(value)
        slopes.append(torch.autograd.grad(value, inputs, allow_unused=form != "paper"))
    torch.testing.assert_close(values[0], values[1], rtol=1e-5, atol=1e-7)
    for one, other in zip(*slopes, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
