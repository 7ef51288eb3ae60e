"""Contrast between label-wise embeddings: those of one class are drawn together, those of different classes apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pluralis.errors import LabelError
from pluralis.params import choice

VARIANTS = ("paper", "released")
_NEVER = -1e30  # a similarity that takes no part in a sum of exponentials; −inf would give NaN where all are left out


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
        batch = len(z)
        similar = torch.cat([z @ z.T, z @ queue.T], 1).div_(tau)
        every_class = torch.cat([classes, queue_classes])
        same = classes[:, None] == every_class
        left_out = (every_class < 0).expand_as(same)
        left_out = left_out.clone().fill_diagonal_(True) if scale is None else left_out | same
        # An anchor is not its own partner; its other view is.
        partners = same.fill_diagonal_(False).to(z.dtype)
        count = partners.sum(1)
        drawn = torch.bmm(similar[:, None], partners[..., None])[:, 0, 0]  # Σ_P z_k·z_k'/τ
        shares = similar.masked_fill_(left_out, _NEVER)
        top = shares.amax(1, keepdim=True) if shares.shape[1] else shares.sum(1, keepdim=True)
        norm = shares.sub_(top).exp_().sum(1)
        valid = (classes >= 0) & (count > 0) & (top[:, 0] > _NEVER / 2)
        each = 1 / (count.clamp(min=1) * valid.sum().clamp(min=1)) if scale is None else torch.full_like(count, scale)
        weight = each * valid
        value = (weight * (count * (norm.log() + top[:, 0]) - drawn)).sum()
        if ctx.needs_input_grad[0]:
            slope = shares.mul_((weight * count / norm)[:, None]).addcmul_(partners, weight[:, None], value=-1)
            inner = slope[:, :batch]  # both factors of these similarities move
            ctx.save_for_backward(((inner + inner.T) @ z + slope[:, batch:] @ queue).div_(tau))
        return value.to(z.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return slope * grad, None, None, None, None, None
