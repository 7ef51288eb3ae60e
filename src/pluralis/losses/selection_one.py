"""The selection likelihood where one or some of the present labels were picked: an integral for each row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pluralis.losses.fused import fusible, one_rows
from pluralis.losses.kernels import softplus
from pluralis.losses.quadrature import MOST_WRITTEN, gauss_rules
from pluralis.losses.rowwise import RowKernel, Rows

# Entries × nodes that a CPU works on at a time: all nodes of a block with two threads, a few with more. On a device
# every launch counts, and memory is plentiful.
TOGETHER = 528_000
BYTES_ON_DEVICE = 2**29
FEW_NODES, SOME_NODES, MOST_NODES = 8, 10, 16  # for one written label a row, for a few of them, for whatever comes
SOME_WRITTEN = 5


def roles(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[b, C] minus the labels, −1, 0, +1; 1 where one is known; 1 where one is unknown in a row with a written label.

    All in the dtype of z: arithmetic is several times faster than tensors of bool.
    """
    sign = y.sign()
    minus = sign.mul(-1.0).to(z.dtype)
    known = minus * minus
    largest = sign.amax(1, keepdim=True) if sign.shape[1] else sign
    return minus, known, torch.gt(largest, known, out=torch.empty_like(z))


def one_likelihood(a: float, absent: bool, several: bool | None = None) -> RowKernel:
    """−log of the chance of the written labels, and as its derivative p − r, p − 1 or p.

    `several`: whether a row may have more than one written label; None to look. One fused kernel serves all rows.
    """

    def kernel(z: Tensor, y: Tensor, slope: bool) -> Rows:
        if fusible(z):
            return *one_rows(z, y, MOST_NODES, a, absent, slope), None
        written = _written(y, several)
        minus, known, hidden = _parts(z, y, absent)
        p = z.sigmoid().mul_(hidden)
        wrong = torch.sub(minus, hidden).mul_(z)  # the logit of a known label being otherwise; −z of others
        loss = softplus(wrong).mul_(known).sum(1, keepdim=True)
        rest = wrong.sigmoid_()  # of unknown labels 1 − p, with all its digits
        integral, weights, v = _integrate(_chances(z, p, hidden, a, written), _nodes(z, a, written), a, written)
        loss = loss.sub(integral.log_())[:, 0]
        if not slope:
            return loss, None, None
        # p − r = p (1−p) ∫ s/(1−ps) Π(1−p_k s) dπ / ∫ Π(1−p_k s) dπ: never a difference of nearly equal numbers
        return loss, minus.addcmul_(_mean(rest, weights, v), p).mul_(rest), None

    return kernel


def one_posterior(a: float, absent: bool, several: bool | None = None) -> RowKernel:
    """Gives the chances of being present in the place of the derivative."""

    def kernel(z: Tensor, y: Tensor, slope: bool) -> Rows:
        written = _written(y, several)
        minus, known, hidden = _parts(z, y, absent)
        p = z.sigmoid()
        chances = _chances(z, p * hidden, hidden, a, written)
        integral, weights, v = _integrate(chances, _nodes(z, a, written), a, written)
        # In float64, so that what is there for certain has r = 1. Rounding aside t ≤ 1 − p (1−t): no r > p.
        mean = _mean(z.neg().double().sigmoid_(), weights.mul_(v), v).to(z.dtype).clamp_(max=1)
        unseen = 1 - known - hidden  # in rows at which nobody looked
        chance = mean.mul_(hidden).add_(unseen).mul_(p)
        return integral[:, 0], chance.sub_(minus.clamp_(max=0)), None

    return kernel


def _parts(z: Tensor, y: Tensor, absent: bool) -> tuple[Tensor, Tensor, Tensor]:
    """As `roles`; with `absent`, whatever is unknown in a row without a written label is known to be absent."""
    minus, known, hidden = roles(z, y)
    if absent:
        known = 1 - hidden
        minus = minus.clamp_(max=0).mul_(2).add_(known)
    return minus, known, hidden


def _chances(z: Tensor, p: Tensor, hidden: Tensor, a: float, written: Tensor | None) -> Tensor:
    """p; in float64 where π may have much of its mass near s = 1, where 1 − ps needs the digits of 1 − p."""
    return p if a >= 1 and written is None else z.double().sigmoid().mul_(hidden)


def _written(y: Tensor, several: bool | None) -> Tensor | None:
    """[b] how many labels are written in each row; None where none has more than one."""
    if several is False:
        return None
    written = y.gt(0).sum(1)
    if several is None and not torch.compiler.is_compiling() and (not len(y) or written.max().item() <= 1):
        return None
    return written


def _nodes(z: Tensor, a: float, written: Tensor | None) -> int:
    """Nodes for the errors that `selection` promises; `quadrature` says why so few are enough.

    The derivative needs the most of them. With 6 the loss keeps its six digits, but the derivative of a label that is
    there for certain is wrong by up to 2e-5 beside a few others. Of several written labels, or for a < 1, more of it
    lies away from 0, where it is less like e^{−κs}: up to five labels take two more, others twice as many (a device is
    not waited for to see it).
    """
    if z.dtype == torch.float64 or a < 1:
        return MOST_NODES
    if written is None:
        return FEW_NODES
    look = z.is_cpu and len(written) > 0 and not torch.compiler.is_compiling()
    return SOME_NODES if look and written.max().item() <= SOME_WRITTEN else MOST_NODES


def _integrate(p: Tensor, nodes: int, a: float, written: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """[b, 1] I = ∫₀¹ Π_j (1 − p_j s) dπ(s), s = 1 − t, and [b, nodes, 1] the share of I and v = (1−s)/s at each node.

    p: [b, C], 0 for labels that have no part in it. `written` [b] is how many labels were picked in each row, one
    everywhere if it is None. The products of many factors near 1 need float64. Here and in `_mean` a few nodes at a
    time: no tensor is much larger than `TOGETHER` or one row.
    """
    p = p.double() if p.is_cpu else p  # a device widens what it reads, which on a CPU takes longer than the arithmetic
    kappa = p.sum(1, dtype=torch.float64)
    if written is not None:  # the slope of −log Π about where Π s^{k−1} is largest, instead of that at 0
        place = written.clamp(1, MOST_WRITTEN) / (written.clamp(1, MOST_WRITTEN) + kappa)
        kappa = p.div(1 - p * place.to(p.dtype)[:, None]).sum(1, dtype=torch.float64)
    minus_s, w, v = gauss_rules(kappa, nodes, a, written)
    # Plain products: the integral is at least that of e^{−κs}, some κ^−32, so a node where they underflow has no part.
    product = _joined([_factors(p, part).prod(2, keepdim=True) for part in _parted(minus_s, p)])
    product.mul_(w)
    integral = product.sum(1)
    return integral, product.div_(integral[:, None]), v


def _mean(rest: Tensor, weights: Tensor, v: Tensor) -> Tensor:
    """[b, C] the weighted mean of s/(1 − ps) over the nodes, 1 − p being `rest`.

    It is 1/(v + 1 − p) with v = (1−s)/s: no digits are lost wherever p and s are near 1, and a sum of few positive
    terms does not need float64.
    """
    mean = None
    for near, weight in zip(_parted(v.to(rest.dtype), rest), _parted(weights.to(rest.dtype), rest), strict=True):
        term = torch.add(near, rest[:, None])
        term = torch.div(weight, term, out=term).sum(1)
        mean = term if mean is None else mean.add_(term)
    assert mean is not None
    return mean


def _parted(rules: Tensor, p: Tensor) -> Sequence[Tensor]:
    """[b, nodes, 1] in as few parts as the room allows, each of some nodes."""
    room = BYTES_ON_DEVICE // rules.element_size()
    if p.is_cpu and not torch.compiler.is_compiling():
        room = TOGETHER
    nodes = rules.shape[1]
    parts = min(nodes, -(-p.numel() * nodes // room))
    return [rules] if parts <= 1 else rules.split(-(-nodes // parts), 1)


def _factors(p: Tensor, minus_s: Tensor) -> Tensor:
    """[b, step, C] 1 − p s in float64."""
    if p.is_cpu:  # there two plain operations are faster than one over three shapes
        return torch.mul(p[:, None], minus_s).add_(1)
    return torch.addcmul(minus_s.new_ones(()), p[:, None], minus_s)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
