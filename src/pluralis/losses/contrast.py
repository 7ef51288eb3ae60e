"""Contrast between label-wise embeddings: those of one class are drawn together, those of different classes apart."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from pluralis.errors import LabelError
from pluralis.losses.fused import Unit, contrast_rows, fusible
from pluralis.params import choice

VARIANTS = ("paper", "released")
_NEVER = -1e30  # a similarity that takes no part in a sum of exponentials; −inf would give NaN where all are left out
_ALONE = -2  # a class that nobody has


def unit(x: Tensor) -> Tensor:
    """The rows of x [A, d] at length 1, as the contrast needs them; rows of length 0 stay.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return Unit.apply(x) if fusible(x) else F.normalize(x, dim=1)


def label_contrast(
    anchors: Tensor,
    classes: Tensor,
    queue: Tensor,
    queue_classes: Tensor,
    temperature: float = 0.5,
    entries: int | None = None,
    variant: str = "paper",
) -> Tensor:
    """The label-aware global consistency loss, over the embeddings that are taken as positive.

        L = −(1/B) Σ_k Σ_{k'∈P(k)} log [ exp(z_k·z_k'/τ) / Σ_{t∈N(k)} exp(z_k·z_t/τ) ]

    k runs over the anchors, k' and t over the anchors and the queue: P(k) = those of k's class except k itself, N(k) =
    those of other classes. Xie et al., NeurIPS 2022, Eqs. 5-7; an embedding whose label is not taken as positive has
    no connection there, so it is never given here, and no matrix is larger than A × (A + K). B is `entries`, the
    number of embeddings of the batch whether or not they are given (default: A). An anchor without any N(k), for which
    the fraction is undefined, is left out. `variant="released"`: the denominator runs over all except k, the terms are
    averaged over P(k) and over the anchors that have any (Khosla et al., Supervised Contrastive Learning, 2020).

    anchors: [A, d], of length 1 each; classes: [A]; queue: [K, d], without gradient; queue_classes: [K]. Class −1
    marks what takes no part. Returns a scalar, which is 0 but part of the graph where there is nothing to contrast.

    >>> z = torch.eye(2)[[0, 0, 1]]
    >>> nothing = torch.empty(0, 2), torch.empty(0, dtype=torch.long)
    >>> label_contrast(z, torch.tensor([0, 0, 1]), *nothing, temperature=1.0)        # −(2/3) log(e¹ / e⁰)
    tensor(-0.6667)
    """
    if len(anchors) != len(classes) or len(queue) != len(queue_classes):
        raise LabelError(
            f"contrast: {len(anchors)} anchors have {len(classes)} classes and {len(queue)} queued embeddings have "
            f"{len(queue_classes)}; give one class for each"
        )
    released = choice("contrast", "variant", variant, VARIANTS) == "released"
    dtype = torch.promote_types(anchors.dtype, torch.float32)
    if not len(anchors):
        return anchors.to(dtype).sum()
    scale = None if released else 1 / max(len(anchors) if entries is None else entries, 1)
    with torch.autocast(anchors.device.type, enabled=False):
        total: Tensor = _Contrast.apply(
            anchors.to(dtype), classes, queue.detach().to(dtype), queue_classes, temperature, scale
        )
    return total


class _Contrast(torch.autograd.Function):
    """Finds the gradient on the way forward, from the one exponential of [A, A + K] that the value needs anyway.

    `scale` is 1/B, or None for the released variant.
    """

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, classes: Tensor, queue: Tensor, queue_classes: Tensor, tau: float, scale: float | None
    ) -> Tensor:
        every = torch.cat([z, queue])
        similar = torch.addmm(z.new_empty(()), z, every.T, beta=0, alpha=1 / tau)
        contrast = _fused if fusible(z) else _plain
        value, slope = contrast(similar, classes, queue_classes, scale is None)
        if ctx.needs_input_grad[0]:
            by = -(scale or 1) / tau
            along = slope @ every  # both factors of the similarities between anchors move
            ctx.save_for_backward(along.addmm_(slope[:, : len(z)].T, z, beta=by, alpha=by))
        return value if scale is None else value.mul_(scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return slope * grad, None, None, None, None, None


def _plain(similar: Tensor, classes: Tensor, queue_classes: Tensor, released: bool) -> tuple[Tensor, Tensor]:
    """The sum over anchors (`released`: the mean) and minus its derivative by the similarities, which are used up."""
    every_class = torch.cat([classes, queue_classes])
    nobody = every_class < 0
    partners = classes.masked_fill(nobody[: len(classes)], _ALONE)[:, None] == every_class
    if released:
        rivals = similar.masked_fill(nobody, _NEVER).fill_diagonal_(_NEVER)
    else:
        rivals = similar.masked_fill(partners | nobody, _NEVER)
    partners.fill_diagonal_(False)  # an anchor is not its own partner; its other view is
    shares = rivals.softmax(1)
    norm = rivals.amax(1, keepdim=True) - shares.amax(1, keepdim=True).log_()  # log Σ_N exp(z_k·z_t/τ)
    if released:
        count = partners.sum(1, keepdim=True, dtype=norm.dtype)
        terms = partners / (count.clamp(min=1) * count.count_nonzero().clamp_(min=1))
    else:
        terms = partners * torch.gt(norm, _NEVER / 2, out=torch.empty_like(norm))
    value = torch.dot(terms.view(-1), torch.sub(norm, similar, out=similar).view(-1))
    return value, terms.addcmul_(shares, terms.sum(1, keepdim=True), value=-1)


def _fused(similar: Tensor, classes: Tensor, queue_classes: Tensor, released: bool) -> tuple[Tensor, Tensor]:
    """The same, by one kernel."""
    rows = contrast_rows(similar, classes, queue_classes, released)
    if not released:
        return rows[0].sum(), similar
    value, anchors = rows.sum(1).unbind()
    return value / anchors.clamp_(min=1), similar.div_(anchors)
