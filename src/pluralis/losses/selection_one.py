"""The selection likelihood where one of the present labels was picked: an integral for each row."""

from __future__ import annotations

import torch
from torch import Tensor

from pluralis.losses.kernels import log_sigmoid
from pluralis.losses.quadrature import gauss_rules
from pluralis.losses.rowwise import RowKernel, Rows

# Entries × nodes that are worked on at a time: as many as PyTorch leaves to one thread where it has several, what fits
# in a core's cache where it has one, and on a device what keeps the number of launches low.
TOGETHER, TOGETHER_ALONE, TOGETHER_ON_DEVICE = 32_000, 64_000, 2**23


def roles(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[b, C] the labels as +1, 0, −1; 1 where one is known; 1 where one is unknown in a row that has a written label.

    All in the dtype of z: arithmetic is several times faster than comparisons and `where`.
    """
    sign = y.sign().to(z.dtype)
    known = sign * sign
    largest = sign.amax(1, keepdim=True) if sign.shape[1] else sign
    return sign, known, (largest - known).clamp_(min=0)


def one_likelihood(a: float, absent: bool) -> RowKernel:
    """−log of the chance of the written labels, and as its derivative p − r, p − 1 or p."""

    def kernel(z: Tensor, y: Tensor, slope: bool) -> Rows:
        sign, known, hidden = _parts(z, y, absent)
        p = z.sigmoid().mul_(hidden).double()
        integral, mean = _integrate(p, a, _nodes(z, a), "s" if slope else "")
        right = sign.add(hidden).mul_(z)  # the logit of a known label being as it is, and that of a hidden one
        loss = integral.log().add_(log_sigmoid(right).mul_(known).sum(1, keepdim=True)).neg_()[:, 0]
        if mean is None:
            return loss, None, None
        # p − r = p (1−p) ∫ s/(1−ps) Π(1−p_k s) dπ / ∫ Π(1−p_k s) dπ: never a difference of nearly equal numbers
        return loss, p.div_(integral).mul_(mean).to(z.dtype).sub_(sign).mul_(right.neg_().sigmoid_()), None

    return kernel


def one_posterior(a: float, absent: bool) -> RowKernel:
    """Gives the chances of being present in the place of the derivative."""

    def kernel(z: Tensor, y: Tensor, slope: bool) -> Rows:
        sign, known, hidden = _parts(z, y, absent)
        p = z.sigmoid()
        integral, mean = _integrate((p * hidden).double(), a, _nodes(z, a), "t")
        assert mean is not None
        unseen = 1 - known - hidden  # in rows at which nobody looked
        chance = mean.div_(integral).to(z.dtype).mul_(hidden).add_(unseen).mul_(p)
        return integral[:, 0], chance.add_(sign.clamp_(min=0)), None

    return kernel


def _parts(z: Tensor, y: Tensor, absent: bool) -> tuple[Tensor, Tensor, Tensor]:
    """As `roles`; with `absent`, whatever is unknown in a row without a written label is known to be absent."""
    sign, known, hidden = roles(z, y)
    if absent:
        known = 1 - hidden
        sign = sign.clamp_(min=0).mul_(2).sub_(known)
    return sign, known, hidden


def _nodes(z: Tensor, a: float) -> int:
    """Nodes for relative errors of the loss under 1e-6 and 1e-12: `quadrature` says why so few are enough."""
    if z.dtype == torch.float64:
        return 16
    return 6 if a >= 1 else 8


def _integrate(p: Tensor, a: float, nodes: int, moment: str) -> tuple[Tensor, Tensor | None]:
    """[b, 1] I = ∫₀¹ Π_j (1 − p_j s) dπ(s), s = 1 − t, and [b, C] I times the mean of s/(1 − p_j s) under it.

    p: [b, C] float64, 0 for labels that have no part in it. `moment` "t" takes (1−s)/(1 − p_j s) instead, "" nothing.
    A few nodes at a time: no tensor is larger than `TOGETHER` or one row.
    """
    rules = gauss_rules(p.sum(1), nodes, a)
    room = TOGETHER_ON_DEVICE
    if p.is_cpu and not torch.compiler.is_compiling():
        room = TOGETHER_ALONE if torch.get_num_threads() == 1 else TOGETHER
    step = -(-nodes // min(nodes, max(1, -(-p.numel() * nodes // room))))
    parts = [rules] if step == nodes else zip(*(column.split(step, 1) for column in rules), strict=True)
    integral, mean = None, None
    for minus_s, w, ws in parts:
        factors = torch.mul(p[:, None], minus_s).add_(1)  # [b, step, C]
        # Plain products: the integral is at least 1/(1 + Σp/a), so a node where they underflow has no part in it.
        product = factors.prod(2, keepdim=True)
        term = (product * w).sum(1)
        integral = term if integral is None else integral.add_(term)
        if moment:
            product.mul_(ws if moment == "s" else w - ws)
            term = torch.div(product, factors, out=factors).sum(1)
            mean = term if mean is None else mean.add_(term)
    assert integral is not None
    return integral, mean
