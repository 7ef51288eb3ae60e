"""Contrast between label-wise embeddings: those of one class are drawn together, those of different classes apart."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from pluralis.errors import LabelError
from pluralis.losses.base import VARIANTS
from pluralis.losses.fused import contrast_fits, contrast_rows, fusible, unit_contrast
from pluralis.losses.pointwise import only_once
from pluralis.params import choice

_NEVER = -1e30  # a similarity that takes no part in a sum of exponentials; −inf would give NaN where all are left out
_ALONE = -2  # a class that nobody has
_EPS = 1e-12  # what is shorter is divided by this, as in `F.normalize`


def label_contrast(
    anchors: Tensor,
    classes: Tensor,
    queue: Tensor,
    queue_classes: Tensor,
    temperature: float = 0.5,
    entries: int | None = None,
    variant: str = "paper",
    twins: Tensor | None = None,
) -> Tensor:
    """The label-aware global consistency loss, over the embeddings that are taken as positive.

        L = −(1/B) Σ_k Σ_{k'∈P(k)} log [ exp(z_k·z_k'/τ) / Σ_{t∈N(k)} exp(z_k·z_t/τ) ]

    k runs over the anchors, k' and t over the anchors and the queue: P(k) = those of k's class, N(k) = those of other
    classes. Where k' = k, the twin of k stands for z_k', an embedding of the same label of the same image by another
    view; without `twins` that term is left out. Xie et al., NeurIPS 2022, Eqs. 5-7; an embedding whose label is not
    taken as positive has no connection there, so it is never given here, and no matrix is larger than A × (A + K). B is
    `entries`, the number of embeddings of the batch whether or not they are given (default: A). An anchor without any
    N(k), for which the fraction is undefined, is left out.
    `variant="released"`: without twins; the denominator runs over all except k, the terms are averaged over P(k) and
    over the anchors that have any (Khosla et al., Supervised Contrastive Learning, 2020).

    anchors: x [A, d], of which z = x/‖x‖ is made here, and twins [A, d] likewise; classes: [A]; queue: [K, d], of
    length 1 each, without gradient; queue_classes: [K]. Class −1 marks what takes no part. Returns a scalar, which is 0
    but part of the graph where there is nothing to contrast.

    >>> x = 3 * torch.eye(2)[[0, 0, 1]]
    >>> nothing = torch.empty(0, 2), torch.empty(0, dtype=torch.long)
    >>> label_contrast(x, torch.tensor([0, 0, 1]), *nothing, temperature=1.0)        # −(2/3) log(e¹ / e⁰)
    tensor(-0.6667)
    >>> label_contrast(x, torch.tensor([0, 0, 1]), *nothing, 1.0, twins=x)           # log(e¹ / 2e⁰) for the third
    tensor(-1.4356)
    """
    if len(anchors) != len(classes) or len(queue) != len(queue_classes):
        raise LabelError(
            f"contrast: {len(anchors)} anchors have {len(classes)} classes and {len(queue)} queued embeddings have "
            f"{len(queue_classes)}; give one class for each"
        )
    if anchors.shape[1:] != queue.shape[1:]:
        raise LabelError(
            f"contrast: anchors have shape {tuple(anchors.shape)} and queued embeddings {tuple(queue.shape)}; give "
            "rows of one length"
        )
    if twins is not None and twins.shape != anchors.shape:
        raise LabelError(
            f"contrast: anchors have shape {tuple(anchors.shape)} and their twins {tuple(twins.shape)}; give one twin "
            "for each"
        )
    released = choice("contrast", "variant", variant, VARIANTS) == "released"
    if released and twins is not None:
        raise LabelError("contrast: the released variant has no twins; give the other view's embeddings as anchors too")
    dtype = torch.promote_types(anchors.dtype, torch.float32)
    if not len(anchors):
        return (anchors if twins is None else anchors + twins).to(dtype).sum()
    scale = None if released else 1 / max(len(anchors) if entries is None else entries, 1)
    x, queue, other = anchors.to(dtype), queue.detach().to(dtype), None if twins is None else twins.to(dtype)
    with torch.autocast(x.device.type, enabled=False) if torch.is_autocast_enabled(x.device.type) else nullcontext():
        total: Tensor = _Contrast.apply(x, other, classes.long(), queue, queue_classes.long(), temperature, scale)
    return total


class _Contrast(torch.autograd.Function):
    """Finds the gradient on the way forward, from the exponentials of [A, A + K] that the value needs anyway.

    `scale` is 1/B, or None for the released variant.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        twins: Tensor | None,
        classes: Tensor,
        queue: Tensor,
        queue_classes: Tensor,
        tau: float,
        scale: float | None,
    ) -> Tensor:
        contrast = unit_contrast if contrast_fits(x, queue) else by_matrices
        value, slope = contrast(x, twins, classes, queue, queue_classes, tau, scale)
        ctx.save_for_backward(slope)
        ctx.anchors = len(x)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        only_once()
        (slope,) = ctx.saved_tensors
        along = slope * grad
        twins = along[ctx.anchors :] if len(along) > ctx.anchors else None
        return along[: ctx.anchors], twins, None, None, None, None, None


def by_matrices(
    x: Tensor,
    twins: Tensor | None,
    classes: Tensor,
    queue: Tensor,
    queue_classes: Tensor,
    tau: float,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """The value, and its derivative by x and, below that, by the twins."""
    both = x if twins is None else torch.cat([x, twins])
    length = torch.linalg.vector_norm(both, dim=1, keepdim=True)
    short = length < _EPS
    units = both / length.clamp_(min=_EPS)
    z, other = units[: len(x)], units[len(x) :]
    every = torch.cat([z, queue])
    similar = torch.addmm(z.new_empty(()), z, every.T, beta=0, alpha=1 / tau)
    if twins is not None:
        to_twins = torch.baddbmm(z.new_empty(()), z[:, None], other[:, :, None], beta=0, alpha=1 / tau)
        similar.diagonal().copy_(to_twins[:, 0, 0])  # with `out=` no graph could be captured
    contrast = _fused if fusible(z) else _plain
    value, slope = contrast(similar, classes, queue_classes, scale, twins is not None)
    if twins is not None:
        to_twin = slope.diagonal()[:, None] / -tau
        slope.fill_diagonal_(0)
    along = slope @ every  # both factors of the similarities between anchors move
    along.addmm_(slope[:, : len(x)].T, z, beta=-1 / tau, alpha=-1 / tau)
    if twins is not None:
        along = torch.cat([along.addcmul_(other, to_twin), z * to_twin])
    part = (along * units).sum(1, keepdim=True).masked_fill_(short, 0)
    return value, along.addcmul_(units, part, value=-1).div_(length)


def _plain(
    similar: Tensor, classes: Tensor, queue_classes: Tensor, scale: float | None, twins: bool
) -> tuple[Tensor, Tensor]:
    """`scale` × the sum over anchors (None: their mean), and minus its derivative by the similarities, now used up.

    The diagonal counts where it holds the similarities to `twins`.
    """
    every_class = torch.cat([classes, queue_classes])
    nobody = every_class < 0
    partners = classes.masked_fill(nobody[: len(classes)], _ALONE)[:, None] == every_class
    if scale is None:
        rivals = similar.masked_fill(nobody, _NEVER).fill_diagonal_(_NEVER)
    else:
        rivals = similar.masked_fill(partners | nobody, _NEVER)
    if not twins:
        partners.fill_diagonal_(False)  # an anchor is not its own partner
    shares = rivals.softmax(1)
    norm = rivals.amax(1, keepdim=True) - shares.amax(1, keepdim=True).log_()  # log Σ_N exp(z_k·z_t/τ)
    if scale is None:
        count = partners.sum(1, keepdim=True, dtype=norm.dtype)
        terms = partners / (count.clamp(min=1) * count.count_nonzero().clamp_(min=1))
    else:
        terms = partners * torch.gt(norm, _NEVER / 2, out=torch.empty_like(norm)).mul_(scale)
    value = torch.dot(terms.view(-1), torch.sub(norm, similar, out=similar).view(-1))
    return value, terms.addcmul_(shares, terms.sum(1, keepdim=True), value=-1)


def _fused(
    similar: Tensor, classes: Tensor, queue_classes: Tensor, scale: float | None, twins: bool
) -> tuple[Tensor, Tensor]:
    """The same, by one kernel."""
    if scale is not None:
        return contrast_rows(similar, classes, queue_classes, scale, twins, released=False).sum(), similar
    value, anchors = contrast_rows(similar, classes, queue_classes, 1.0, twins, released=True).sum(1).unbind()
    return value / anchors.clamp_(min=1), similar.div_(anchors)
