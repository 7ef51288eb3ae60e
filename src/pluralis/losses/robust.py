"""The generalised robust (GR) loss: soft pseudo-labels, weights and robust losses for the unknown labels."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pluralis.losses.base import VARIANTS, Loss
from pluralis.losses.framework import Framework
from pluralis.losses.kernels import CERTAIN, LOG2E, log_sigmoid
from pluralis.losses.pointwise import pointwise
from pluralis.params import choice, flag, number

TRAINABLE = ("none", "beta", "alpha", "both")
_NEVER = -1e4  # a logit that makes k̂ = 0


def gr(
    logits: Tensor,
    labels: Tensor,
    w: float = 0.0,
    b: float = -2.0,
    mu: float = 0.5,
    sigma: float = 2.0,
    q1: float = 0.01,
    q2: float = 0.01,
    q3: float = 1.0,
    reduction: str = "mean",
) -> Tensor:
    """Generalised robust loss at one epoch: soft pseudo-labels k̂ and weights v for the unknown labels.

    L = (1/NC) Σ  L1                              y = +1
                  v·[k̂·L2 + (1−k̂)·L3]             y = 0
                  L0                              y = −1 (not in the paper)
    k̂ = 1/(1 + exp(−(w·p + b))), v = exp(−(p−μ)²/(2σ²)), both without gradient,
    L1 = (1 − p^{q1})/q1, L2 = (1 − p^{q2})/q2, L3 = (1 − (1−p)^{q3})/q3; q = 0 is the limit −log.
    L0 = (1 − (1−p)^{q1})/q1: what is known to be absent is as certain as what is present. L3 would doubt it most where
    the prediction is most wrong; on frozen features of VOC with 10, 50 and 90 % known L0 adds 0.8, 0.0 and 0.2 mAP.
    Chen et al., IJCAI 2024, Eqs. 4, 5, 7, 11, 14. Eq. 4 divides by N only; we divide by N·C, as for all losses here.
    The defaults are the parameters of epoch 0.

    >>> z = torch.tensor([[0.0, 0.0]])
    >>> gr(z, torch.tensor([[-1, 0]]), b=-100.0, reduction="none")
    tensor([[0.6908, 0.5000]])
    """
    kernel = partial(_gr, w=w, b=b, mu=mu, sigma=sigma, q1=q1, q2=q2, q3=q3)
    return pointwise(kernel, logits, labels, reduction)


class GR(Loss):
    """Generalised robust loss (see `functional.gr`) with the linear schedules of its Eqs. 9, 10, 12 and 13:

    w = w0 + (wT − w0)·t/T with t = epoch and T = epochs, and likewise b, μ and σ. The defaults are the paper's for VOC.

    `variant="released"`: L1 = −log p, and μ, σ at (t+1)/T, as in the published code.
    For the ablations of Table 3: `pseudo=False` sets k̂ = 0, `weights=False` v = 1, `robust=False` cross-entropy for
    L1, L2 and L3 (the paper writes q = 0.01, its near limit); without all three it is assume negative.
    `trainable="beta"` learns w and b by gradient descent from w0, b0 instead of the schedule, "alpha" μ and log σ from
    mu0, sigma0, "both" all four: one number each for all classes, the gradient going through k̂ and v but not through
    the p in them (Sec. 3.3). They learn at `lr_factor` times the learning rate, as published heads do, and without
    weight decay. Nothing in the loss holds v up: ∂L/∂log σ = Σ v·(k̂·L2 + (1−k̂)·L3)·(p−μ)²/σ² / NC is never negative,
    and μ moves away from the p of the unknown labels. So the rate decides how far v has fallen at the end, and where it
    has fallen to 0 only positives are learnt.

    >>> loss = GR(wT=10, bT=-8)                                 # for COCO
    >>> loss.at(epoch=4, epochs=8)
    {'w': 5.0, 'b': -5.0, 'mu': 0.65, 'sigma': 1.25}
    >>> loss(torch.zeros(1, 2), torch.tensor([[1, 0]]), epoch=4, epochs=8).item() > 0
    True
    >>> [name for name, _ in GR(trainable="beta").named_parameters()]
    ['beta']
    """

    paper = "Chen et al.: Boosting Single Positive Multi-label Classification with Generalized Robust Loss, IJCAI 2024"
    start_bias = "log-odds"
    deep_start_bias = "equal"  # as published, where a network learns; a table's few rows hardly find their level so

    def __init__(
        self,
        w0: float = 0.0,
        b0: float = -2.0,
        wT: float = 2.0,
        bT: float = -2.0,
        mu0: float = 0.5,
        sigma0: float = 2.0,
        muT: float = 0.8,
        sigmaT: float = 0.5,
        q1: float = 0.01,
        q2: float = 0.01,
        q3: float = 1.0,
        variant: str = "paper",
        pseudo: bool = True,
        weights: bool = True,
        robust: bool = True,
        trainable: str = "none",
        lr_factor: float = 10.0,
    ) -> None:
        super().__init__()
        self.w0, self.wT = number("loss gr", "w0", w0), number("loss gr", "wT", wT)
        self.b0, self.bT = number("loss gr", "b0", b0), number("loss gr", "bT", bT)
        self.mu0, self.muT = number("loss gr", "mu0", mu0), number("loss gr", "muT", muT)
        self.sigma0 = number("loss gr", "sigma0", sigma0, above=0.0)
        self.sigmaT = number("loss gr", "sigmaT", sigmaT, above=0.0)
        self.q1 = number("loss gr", "q1", q1, low=0.0)
        self.q2 = number("loss gr", "q2", q2, low=0.0)
        self.q3 = number("loss gr", "q3", q3, low=0.0)
        self.variant = choice("loss gr", "variant", variant, VARIANTS)
        self.pseudo = flag("loss gr", "pseudo", pseudo)
        self.weights = flag("loss gr", "weights", weights)
        self.robust = flag("loss gr", "robust", robust)
        self.trainable = choice("loss gr", "trainable", trainable, TRAINABLE)
        self.lr_factor = number("loss gr", "lr_factor", lr_factor, low=0.0)
        self.beta = self.alpha = None
        if trainable in ("beta", "both") and pseudo:
            self.beta = nn.Parameter(torch.tensor([self.w0, self.b0]))
        if trainable in ("alpha", "both") and weights:
            self.alpha = nn.Parameter(torch.tensor([self.mu0, math.log(self.sigma0)]))

    def at(self, epoch: int, epochs: int) -> dict[str, float]:
        """The scheduled parameters at an epoch."""
        early, late = (min((epoch + ahead) / max(epochs, 1), 1.0) for ahead in (0, self.variant == "released"))
        ends = {
            "w": (self.w0, self.wT, early),
            "b": (self.b0, self.bT, early),
            "mu": (self.mu0, self.muT, late),
            "sigma": (self.sigma0, self.sigmaT, late),
        }
        return {name: start + (end - start) * part for name, (start, end, part) in ends.items()}

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        now: dict[str, float | Tensor] = {**self.at(epoch, epochs)}
        if not self.pseudo:
            now |= {"w": 0.0, "b": _NEVER}
        if not self.weights:
            now["sigma"] = math.inf
        now["q1"] = self.q1 if self.robust and self.variant == "paper" else 0.0
        now["q2"], now["q3"] = (self.q2, self.q3) if self.robust else (0.0, 0.0)
        if self.beta is None and self.alpha is None:
            return gr(logits, labels, **now)  # type: ignore[arg-type]
        if self.beta is not None:
            now["w"], now["b"] = self.beta.unbind()
        if self.alpha is not None:
            now["mu"], now["sigma"] = self.alpha[0], self.alpha[1].exp()
        return Framework.gr(**now)(logits, labels)  # type: ignore[arg-type]


def _gr(
    z: Tensor,
    y: Tensor,
    slope: bool,
    w: float,
    b: float,
    mu: float,
    sigma: float,
    q1: float,
    q2: float,
    q3: float,
) -> tuple[Tensor, Tensor | None]:
    sign = y.sign().to(z.dtype)
    known = sign.abs()
    turn = (sign - known).add_(1)  # −1 where the label is absent: from here on p is of what the label says
    z = z * turn
    p, rest = z.sigmoid(), z.neg().sigmoid_()
    distance = (p - mu).square_()
    v = distance.addcmul_(distance, known, value=-1).mul_(-0.5 * LOG2E / sigma**2).exp2_()  # 1 where known
    k = (p * w).add_(b).add_(known, alpha=CERTAIN).sigmoid_()  # exactly 1 where known
    up = k.mul_(v)
    down = v.sub_(up)

    log_p = log_sigmoid(z) if (q1, q2) != (1, 1) else z
    log_rest = log_sigmoid(-z) if q3 != 1 else z
    loss_up, scale_up = _robust(rest, log_p, q2)
    loss_down, scale_down = _robust(p, log_rest, q3)
    slope_up = _robust_slope(p, rest, loss_up, q2) if slope else None
    if q1 != q2:
        loss_one, scale_one = _robust(rest, log_p, q1)
        if slope_up is not None:
            slope_up = slope_up.lerp(_robust_slope(p, rest, loss_one, q1), known)
        loss_up, scale_up = (loss_up * scale_up).lerp_(loss_one * scale_one, known), 1.0
    loss = loss_down * down
    loss = (loss if scale_down == 1 else loss.mul_(scale_down)).addcmul_(loss_up, up, value=scale_up)
    if slope_up is None:
        return loss, None
    return loss, _robust_slope(rest, p, loss_down, q3).mul(down).addcmul_(slope_up, up, value=-1).mul_(turn)


def _robust(rest: Tensor, log_p: Tensor, q: float) -> tuple[Tensor, float]:
    """(1 − p^q)/q as a tensor and a factor; `rest` is 1−p with all its digits."""
    if q == 0:
        return log_p, -1.0
    if q == 1:
        return rest, 1.0
    return F.elu_(log_p * q), -1.0 / q  # elu(x) is expm1(x) for x < 0


def _robust_slope(p: Tensor, rest: Tensor, loss: Tensor, q: float) -> Tensor:
    """p^q·(1−p), the size of its derivative by z, from the tensor that `_robust` gave."""
    if q == 0:
        return rest
    if q == 1:
        return p * rest
    return torch.addcmul(rest, loss, rest)
