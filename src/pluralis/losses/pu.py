"""Positive-unlabelled losses: each class tells its positives from a mixture, and no label has to be absent.

What a class looks at is the batch: the rows P_c where it is known to be present, and the mixture U_c. Everything is
computed in log space, so nothing needs an epsilon, in float32 or better.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis.losses.columnwise import columnwise, wide
from pluralis.losses.kernels import check_batch, log_sigmoid, where_present
from pluralis.losses.pointwise import reduce
from pluralis.params import choice

ABSENT = ("unlabelled", "cross-entropy")
NO_POSITIVE = ("keep", "skip")

# 1/τ multiplies every gradient of a class, and Eq. 13 lets it grow without bound where the logits of a class hardly
# differ: a head that starts from zero, a column that bfloat16 rounds to one number. The smallest temperature that the
# paper tries is 0.2, and usual heads start with a spread of 0.1 or more, so that this bound is out of their way.
MIN_TAU = 0.01
_LOG_EPSILON = math.log(1e-10)  # of the released implementation


def adaptive_temperature(logits: Tensor, alpha: float) -> Tensor:
    """τ_c = min(α·Std(s_c), 1) without gradient, [C] from the logits [N, C] of a batch.

    Yuan et al., 2023, Eq. 13. Std divides by N, as the released implementation does (the paper does not say). τ is at
    least MIN_TAU. One row has no spread to measure and keeps τ = 1.

    >>> adaptive_temperature(torch.tensor([[0.0, 0.0, -9.0], [0.5, 0.0, 9.0]]), alpha=2.0)
    tensor([0.5000, 0.0100, 1.0000])
    """
    z = wide(logits.detach())
    if len(z) < 2:
        return z.new_ones(z.shape[1])
    spread = (z - z.mean(0)).square_().mean(0).sqrt_()  # four times as fast as `std`
    return spread.mul_(alpha).clamp_(MIN_TAU, 1.0)


def variational(
    logits: Tensor,
    labels: Tensor,
    gamma: float = 0.0,
    tau: float | Tensor = 1.0,
    positives_in_u: bool = True,
    absent: str = "unlabelled",
    variant: str = "paper",
    no_positive: str = "keep",
    reduction: str = "mean",
) -> Tensor:
    """The variational loss of positive-unlabelled learning, with re-balance factor and temperature.

    L_c = p_c^γ · log( 1/|U_c| Σ_{U_c} σ(s/τ_c) ) − 1/|P_c| Σ_{P_c} log σ(s/τ_c),   p_c = 1/|U_c| Σ_{U_c} σ(s)
    Yuan et al., "Positive Label Is All You Need for Multi-Label Classification", 2023, Eqs. 7, 11, 14; with γ = 0 and
    τ = 1 it is vPU, Chen et al., NeurIPS 2020, Eq. 6. p_c^γ is without gradient. A class with an empty U_c keeps the P
    term. For a class without a positive in the batch the equation is undefined (in vPU every batch has positives):
    `no_positive="keep"` keeps the U term alone, as PU-MLC's published code, which pulls all of the class down at each
    such step; with "skip" L_c = 0 in this step.

    logits, labels: [N, C]; `tau` is a number or [C], without gradient. U_c is all rows, or with `positives_in_u=False`
    those where the class is not known to be present. Verified absent labels (−1) are part of U_c, since the method
    drops what is known of them; `absent="cross-entropy"` keeps them there, so that U_c stays a sample of all images,
    and adds −1/|N_c| Σ_{N_c} log(1 − σ(s/τ_c)) over the rows N_c where the class is known to be absent, skipped or not.
    `variant="released"` takes p_c of the tempered logits and floors every probability at 1e-10 as the published code.
    The paper sums over the classes; "mean" divides by C, so that the loss has the scale of the others, "sum" is the
    paper's and "none" gives [C]. Skipped classes count in C: what a class adds does not depend on the others.

    >>> z = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    >>> variational(z, torch.tensor([[1, 0], [0, 0]]), reduction="none")      # log ½ − log ½, log ½
    tensor([ 0.0000, -0.6931])
    >>> variational(z, torch.tensor([[1, 0], [0, 0]]), no_positive="skip")    # of the second class nothing is left
    tensor(0.)
    """
    kernel = partial(
        _variational,
        gamma=gamma,
        tau=tau.detach().expand(logits.shape[-1:]) if isinstance(tau, Tensor) else tau,
        inside=positives_in_u,
        absent=absent == "cross-entropy",
        released=variant == "released",
        skip=choice("loss vpu", "no_positive", no_positive, NO_POSITIVE) == "skip",
    )
    return columnwise(kernel, logits, labels, reduction)


def _variational(
    z: Tensor,
    y: Tensor,
    here: slice,
    slope: bool,
    gamma: float,
    tau: float | Tensor,
    inside: bool,
    absent: bool,
    released: bool,
    skip: bool,
) -> tuple[Tensor, Tensor | None]:
    """L_c, and as its derivative σ(−s/τ)/τ · (p_c^γ · the share in the sum over U_c − 1/|P_c| on P_c)."""
    tau = tau[here].to(z.dtype) if isinstance(tau, Tensor) else tau
    x = z / tau
    present, log_p = where_present(z, y), log_sigmoid(x)
    count, outside = present.sum(0), None if inside else present
    log_mean, terms, total = _log_mean_exp(log_p, outside)
    pull = torch.ones_like(count)
    if gamma:
        log_share = log_mean if released else _log_mean_exp(log_sigmoid(z), outside)[0]
        pull = (gamma * log_share).exp_()
    size = count.clamp(min=1)
    log_positive = (_floor(log_p, released) * present).sum(0).div_(size)
    loss = pull * _floor(log_mean, released) - _floor(log_positive, released)
    if skip:
        some = count.clamp_(max=1)
        loss, pull = loss.mul_(some), pull.mul_(some)  # not `where`: a logit that is not a number shall be seen
    negative = _shares(z, y < 0) if absent else None
    if negative is not None:
        loss = loss - (log_sigmoid(-x) * negative).sum(0)
    if not slope:
        return loss, None

    if released:
        pull = pull * _floor_slope(log_mean)
        present = present * _floor_slope(log_p) * _floor_slope(log_positive)
    # Divided as columns [C], which are short.
    derivative = terms.mul_(pull / total.mul_(tau)).sub_(present.div_(size.mul_(tau))).mul_(x.neg().sigmoid_())
    if negative is not None:
        derivative.addcmul_(x.sigmoid(), negative / tau)
    return loss, derivative


def mixup(
    logits: Tensor,
    labels: Tensor,
    mixed: Tensor,
    pairs: tuple[Tensor, Tensor],
    mu: float,
    form: str = "logits",
    variant: str = "paper",
    reduction: str = "mean",
) -> Tensor:
    """Consistency with mixed images: the answer for a mixture should be the mixture of the answers.

    L_c = 1/n Σ_i ( log t_ic − log σ(s̃_ic) )², s̃ = Φ(μ·x' + (1−μ)·x''), with gradient through both sides and
    form "logits"          t = σ(μ·s' + (1−μ)·s'')             Yuan et al., 2023, Eqs. 8-9
    form "probabilities"   t = μ·r' + (1−μ)·r'', r = 1 where the class is known to be present and σ(s) elsewhere:
                           Chen et al., NeurIPS 2020, and the released implementation of PU-MLC
    logits, labels: [N, C] of the batch; mixed: s̃ [n, C]; pairs: the rows of ' and of '', each [n]. Nothing is tempered.
    The mean is over n and C; the paper sums over C, which "sum" gives, and "none" gives [C].

    >>> z, y = torch.tensor([[2.0], [-4.0]]), torch.tensor([[1], [0]])
    >>> pairs = (torch.tensor([0]), torch.tensor([1]))
    >>> mixup(z, y, torch.tensor([[-1.0]]), pairs, mu=0.5)                    # log σ(−1) on both sides
    tensor(0.)
    """
    check_batch(logits, labels, reduction)
    released = variant == "released"
    z, (first, second) = wide(logits), pairs
    if form == "logits":
        target = F.logsigmoid(mu * z[first] + (1 - mu) * z[second])
    else:
        log_r = F.logsigmoid(z).masked_fill(labels > 0, 0.0)
        target = torch.logaddexp(log_r[first] + _log(mu), log_r[second] + _log(1 - mu))
    gap = _floor(target, released) - _floor(F.logsigmoid(wide(mixed)), released)
    return reduce(gap.square().sum(0) / max(len(gap), 1), reduction)


def _log(x: float) -> float:
    return math.log(x) if x > 0 else -math.inf


def _floor(log_p: Tensor, released: bool) -> Tensor:
    """log(p + 1e-10) in the released implementation."""
    return torch.logaddexp(log_p, log_p.new_tensor(_LOG_EPSILON)) if released else log_p


def _floor_slope(log_p: Tensor) -> Tensor:
    """Its derivative by log p, p/(p + 1e-10)."""
    return (log_p - _LOG_EPSILON).sigmoid_()


def _shares(z: Tensor, chosen: Tensor) -> Tensor:
    """[N, C] 1/n where one of the n chosen entries of a column is, and 0 elsewhere."""
    mask = chosen.to(z.dtype)
    return mask.div_(mask.sum(0).clamp_(min=1))


def _log_mean_exp(values: Tensor, outside: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """log of the mean of exp over each column [C], 0 where nothing counts; the terms [N, C] up to a factor; their sum.

    outside: 1 at the entries that do not count and 0 elsewhere, or None.
    """
    size: int | Tensor = len(values)
    some = None
    if outside is not None:
        counted = size - outside.sum(0)
        size, some = counted.clamp(min=1), counted.clamp(max=1)
        # A column of which nothing counts is left whole and thrown away afterwards: the logarithm of 0 would be NaN.
        values = values.masked_fill((outside * some).bool(), -torch.inf)
    top = values.amax(0)
    terms = (values - top).exp_()  # not `softmax`, which adds up many rows with few digits
    total = terms.sum(0)
    log_mean = (total / size).log_().add_(top)
    return (log_mean, terms, total) if some is None else (log_mean.mul_(some), terms.mul_(some), total)
