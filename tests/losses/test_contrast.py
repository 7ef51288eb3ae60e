"""The contrast of label-wise embeddings, against loops over all pairs in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.errors import LabelError, RecipeError
from pluralis.losses.contrast import label_contrast

VARIANTS = ["paper", "released"]


def example(a: int, k: int, classes: int = 4, seed: int = 0, empty: bool = True) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    z = F.normalize(torch.randn(a + k, 6, generator=generator, dtype=torch.float64), dim=1)
    kinds = torch.randint(-1 if empty else 0, classes, (a + k,), generator=generator)
    return z[:a], kinds[:a], z[a:], kinds[a:]


def loops(z: Tensor, classes: Tensor, queue: Tensor, kinds: Tensor, tau: float, entries: int, kind: str) -> float:
    """Eq. 7, one pair after the other."""
    every = np.concatenate([(z / z.norm(dim=1, keepdim=True)).numpy(), queue.numpy()])
    labels = [*classes.tolist(), *kinds.tolist()]
    per_anchor = []
    for k in range(len(z)):
        if labels[k] < 0:
            continue
        pairs = [t for t in range(len(every)) if t != k and labels[t] >= 0]
        partners = [t for t in pairs if labels[t] == labels[k]]
        others = pairs if kind == "released" else [t for t in pairs if labels[t] != labels[k]]
        if not partners or not others:
            continue
        below = sum(np.exp(every[k] @ every[t] / tau) for t in others)
        terms = [np.log(np.exp(every[k] @ every[t] / tau) / below) for t in partners]
        per_anchor.append(np.mean(terms) if kind == "released" else np.sum(terms))
    if kind == "released":
        return -float(np.mean(per_anchor)) if per_anchor else 0.0
    return -float(np.sum(per_anchor)) / entries


@pytest.mark.parametrize("kind", VARIANTS)
@pytest.mark.parametrize(("a", "k", "classes"), [(12, 30, 4), (5, 0, 2), (1, 9, 3), (20, 3, 20), (8, 8, 1)])
def test_value_is_that_of_the_formula(kind: str, a: int, k: int, classes: int) -> None:
    for seed in range(4):
        given = example(a, k, classes, seed)
        found = label_contrast(*given, temperature=0.3, entries=7 * a, variant=kind)
        assert found.item() == pytest.approx(loops(*given, 0.3, 7 * a, kind), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("kind", VARIANTS)
def test_gradient_is_that_of_the_value(kind: str) -> None:
    z, *rest = example(7, 9, 3)
    z = (z * torch.linspace(0.5, 4, 7)[:, None]).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: 3 * label_contrast(x, *rest, temperature=0.4, variant=kind), z)


@pytest.mark.parametrize("kind", VARIANTS)
def test_length_does_not_matter_and_the_gradient_is_that_of_normalising(kind: str) -> None:
    """Also of rows of length 0 or nearly so, whose direction is no direction."""
    z, *rest = example(7, 9, 3, empty=False)
    lengths = torch.tensor([1.0, 20.0, 1e-3, 0.0, 1e-14, 3.0, 1e-9], dtype=torch.float64)[:, None]
    x = (z * lengths).requires_grad_()
    loss = label_contrast(x, *rest, temperature=0.4, variant=kind)
    unit = F.normalize(x, dim=1)
    exact = autograd_contrast(unit, *rest, 0.4, kind)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-12)
    (found,), (wanted,) = torch.autograd.grad(loss, x), torch.autograd.grad(exact, x)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    assert wanted.any(1).all()


def autograd_contrast(z: Tensor, classes: Tensor, queue: Tensor, kinds: Tensor, tau: float, kind: str) -> Tensor:
    """The formula where all places have a class, left to autograd."""
    similar, every = z @ torch.cat([z, queue]).T / tau, torch.cat([classes, kinds])
    others = torch.arange(len(every)) != torch.arange(len(z))[:, None]
    same = classes[:, None] == every
    below = similar.masked_fill(~others if kind == "released" else same, -torch.inf).logsumexp(1, keepdim=True)
    terms = torch.where(same & others, below - similar, 0).sum(1)
    count = (same & others).sum(1)
    return (terms / count.clamp(min=1)).sum() / count.count_nonzero() if kind == "released" else terms.mean()


def test_by_default_it_is_divided_by_the_anchors() -> None:
    given = example(6, 5, empty=False)
    assert label_contrast(*given).item() == pytest.approx(label_contrast(*given, entries=6).item(), rel=1e-14)


@pytest.mark.parametrize("kind", VARIANTS)
def test_order_does_not_matter(kind: str) -> None:
    z, classes, queue, kinds = example(9, 14)
    p, q = torch.randperm(9), torch.randperm(14)
    found = label_contrast(z[p], classes[p], queue[q], kinds[q], variant=kind)
    assert found.item() == pytest.approx(label_contrast(z, classes, queue, kinds, variant=kind).item(), rel=1e-12)


@pytest.mark.parametrize("kind", VARIANTS)
def test_empty_places_take_no_part(kind: str) -> None:
    z, classes, queue, kinds = example(9, 14, empty=False)
    whole = label_contrast(z, classes, queue, kinds, entries=9, variant=kind)
    pad, none = F.normalize(torch.randn(5, 6, dtype=torch.float64), dim=1), torch.full((5,), -1)
    padded = label_contrast(
        torch.cat([z, pad]), torch.cat([classes, none]), torch.cat([pad, queue]), torch.cat([none, kinds]),
        entries=9, variant=kind,
    )  # fmt: skip
    assert padded.item() == pytest.approx(whole.item(), rel=1e-12)


@pytest.mark.parametrize("kind", VARIANTS)
@pytest.mark.parametrize(
    ("classes", "kinds"),
    [
        ([], []),  # nothing at all
        ([], [0, 1]),  # no anchor
        ([2], []),  # one anchor alone
        ([2], [0, 1]),  # no partner
        ([-1, -1], [-1, -1]),  # all unknown
        ([0, 1, 2], [3, -1]),  # every class once
    ],
)
def test_nothing_to_contrast_is_a_zero_with_a_gradient(kind: str, classes: list[int], kinds: list[int]) -> None:
    z = F.normalize(torch.randn(len(classes), 6), dim=1).requires_grad_()
    queue = F.normalize(torch.randn(len(kinds), 6), dim=1)
    loss = label_contrast(z, torch.tensor(classes).long(), queue, torch.tensor(kinds).long(), variant=kind)
    loss.backward()
    assert loss.item() == 0
    assert z.grad is not None
    assert not z.grad.any()


def test_one_class_alone_has_no_fraction_in_the_paper() -> None:
    z = F.normalize(torch.randn(4, 6), dim=1).requires_grad_()
    classes, nothing = torch.zeros(4, dtype=torch.long), (torch.empty(0, 6), torch.empty(0, dtype=torch.long))
    assert label_contrast(z, classes, *nothing).item() == 0
    released = label_contrast(z, classes, *nothing, variant="released")
    assert released.item() > 0
    released.backward()
    assert torch.isfinite(z.grad).all()  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_sharp_temperature_and_autocast_stay_finite(kind: str, dtype: torch.dtype) -> None:
    z, classes, queue, kinds = example(12, 20)
    z = torch.cat([z, z[:1], -z[:1]]).to(dtype).requires_grad_()  # equal and opposite ones too
    classes = torch.cat([classes, classes[:1], classes[:1]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = label_contrast(z, classes, queue.float(), kinds, temperature=0.01, variant=kind)
    loss.backward()
    expected = loops(z.detach().double(), classes, queue, kinds, 0.01, 14, kind)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    assert torch.isfinite(z.grad).all()  # type: ignore[arg-type]


def test_inputs_and_queue_are_left_alone() -> None:
    given = example(6, 5)
    before = [t.clone() for t in given]
    z, queue = given[0].requires_grad_(), given[2].requires_grad_()
    label_contrast(z, given[1], queue, given[3]).backward()
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))
    assert queue.grad is None


def test_wrong_calls() -> None:
    z, classes, queue, kinds = example(6, 5)
    with pytest.raises(LabelError, match="6 anchors have 5 classes"):
        label_contrast(z, classes[:5], queue, kinds)
    with pytest.raises(LabelError, match=r"\(6, 6\) and queued embeddings \(5, 4\)"):
        label_contrast(z, classes, queue[:, :4], kinds)
    with pytest.raises(RecipeError, match="paper, released"):
        label_contrast(z, classes, queue, kinds, variant="other")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
def test_classes_of_any_integer_dtype(dtype: torch.dtype) -> None:
    x, kinds = torch.randn(26, 6, generator=torch.Generator().manual_seed(0)), torch.arange(26) % 3
    queue = F.normalize(x[6:], dim=1)
    expected = label_contrast(x[:6], kinds[:6], queue, kinds[6:])
    assert label_contrast(x[:6], kinds[:6].to(dtype), queue, kinds[6:].to(dtype)) == expected
