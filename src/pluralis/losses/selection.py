"""The likelihood of the labels that somebody wrote down, when one of the present labels is picked at random.

Used to choose between models when only partial labels are at hand: it needs no absent label to be known.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.losses.pointwise import check_inputs

NODES = 40
# The integrand is at most exp(−s·Σp): beyond s = DECAY/Σp less than e^−40 of the integral is left, and on what remains
# it falls by no more than e^40 or so, which 40 Gauss-Legendre nodes integrate to the last digits of float64.
DECAY = 40.0
# Stays in the cache and below the 32,768 from which PyTorch splits an operation over threads: with some three hundred
# short operations a block, waiting for the threads would cost more than they give.
ENTRIES_PER_BLOCK = 30_000


def selection_nll(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """−log P(written labels | image) under "one present label was picked, any equally likely", and its derivative.

    With p = σ(z), O the labels present, A those verified absent and U the unknown ones of a row:

        nll = −[ Σ_O log p + Σ_A log(1−p) + log ∫₀¹ Π_{j∈U} (1 − p_j s) ds ],        s = 1 − t

    because 1/m = ∫₀¹ t^{m−1} dt turns "one of the m present labels" into a product over labels; it is a sum over the
    classes, not a mean. The derivative by z is p−1 on O, p on A and p−r on U, where r is the chance that the label is
    present given what was written: p_j − r_j = p_j (1−p_j) ∫ s/(1 − p_j s) Π(1 − p_k s) ds / ∫ Π(1 − p_k s) ds.

    logits, labels: [B, C], labels > 0 present, < 0 verified absent, 0 unknown. A row without any label contributes the
    integral alone, which is no statement that anybody made: leave such rows out. Returns nll [B] in float64 and the
    derivative [B, C] in the logits' dtype, both without a graph; the integral is taken in float64, node by node, in
    memory O(B·C + B·nodes), to a relative error under 1e-9.
    """
    check_inputs(logits, labels, "none")
    logits = logits.detach()
    flat, given = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1, logits.shape[-1])
    nll = torch.empty(len(flat), dtype=torch.float64, device=logits.device)
    slope = torch.empty_like(flat)
    rows = max(1, ENTRIES_PER_BLOCK // max(1, flat.shape[1])) if logits.device.type == "cpu" else max(1, len(flat))
    for start in range(0, len(flat), rows):
        block = slice(start, start + rows)
        nll[block], slope[block] = _block(flat[block].double(), given[block])
    return nll.reshape(logits.shape[:-1]), slope.reshape(logits.shape)


def _block(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    present, unknown = y > 0, y == 0
    sign = present.to(z.dtype).mul_(2).sub_(1)
    log_known = F.logsigmoid(z * sign).masked_fill_(unknown, 0.0).sum(1)

    p, rest = z.sigmoid(), z.neg().sigmoid_()
    p_unknown = p.masked_fill(~unknown, 0.0)
    reach = (DECAY / p_unknown.sum(1, keepdim=True)).clamp_(max=1.0)  # of s, per row; DECAY/0 is infinite: all of it
    nodes, weights = (torch.from_numpy(a).to(z.device) for a in _gauss_legendre(NODES))
    s = reach * nodes  # [B, nodes]
    # Plain products: the integral is at least 1/(1 + Σp), so a node where the product underflows has no part in it.
    product = torch.empty_like(s)
    work = torch.empty_like(p)
    for i in range(NODES):
        torch.mul(p_unknown, -s[:, i : i + 1], out=work)
        product[:, i] = work.add_(1.0).prod(1)
    terms = product.mul_(reach * weights)
    integral = terms.sum(1)

    share = terms / integral[:, None]
    mean = torch.zeros_like(p)  # ∫ s/(1 − p s) Π(1 − p_k s) ds / ∫ Π(1 − p_k s) ds
    for i in range(NODES):
        torch.mul(p_unknown, -s[:, i : i + 1], out=work)
        mean.addcdiv_((share[:, i] * s[:, i])[:, None].expand_as(work), work.add_(1.0))
    slope_known = torch.where(present, -rest, p)
    return -(log_known + integral.log()), torch.where(unknown, mean.mul_(p).mul_(rest), slope_known)


@cache
def _gauss_legendre(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(n)
    return (x + 1) / 2, w / 2
