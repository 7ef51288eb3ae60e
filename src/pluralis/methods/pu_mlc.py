"""PU-MLC and vPU: every class is learned from its positives and from images of which nothing is known."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from pluralis.errors import RecipeError
from pluralis.labels import Labels
from pluralis.losses.base import VARIANTS
from pluralis.losses.pu import ABSENT, MIN_TAU, NO_POSITIVE, adaptive_temperature, mixup, variational
from pluralis.method import Batch, Clock, Method, Setup
from pluralis.models.lgconv import add_global_branches
from pluralis.params import choice, flag, number

# For 10, 20, … 90 % known labels, and for all of them where the paper gives it.
PUBLISHED_GAMMA = {
    "coco": (0.55, 0.50, 0.35, 0.30, 0.25, 0.20, 0.15, 0.10, 0.05, 0.03),
    "voc": (0.85, 0.65, 0.55, 0.50, 0.45, 0.35, 0.15, 0.05, 0.01),
}

LEAST_AUTO_GAMMA = 0.15
_GAMMAS = {"auto": ("voc", LEAST_AUTO_GAMMA), "published": ("voc", 0.0), "published-coco": ("coco", 0.0)}
"""Words for γ: whose list, and what it is at least."""


def published_gamma(data_set: str, known_ratio: float) -> float:
    """The paper's γ for "coco" or "voc" at the nearest share of known labels that it lists.

    >>> published_gamma("coco", 0.5), published_gamma("voc", 0.08)
    (0.25, 0.85)
    """
    listed = PUBLISHED_GAMMA[choice("published_gamma", "data_set", data_set, PUBLISHED_GAMMA)]
    share = number("published_gamma", "known_ratio", known_ratio, low=0.0, high=1.0)
    return listed[min(max(round(10 * share), 1), len(listed)) - 1]


def auto_gamma(labels: Labels, k: float = 1.5, least: float = LEAST_AUTO_GAMMA, data_set: str = "voc") -> float:
    """γ by the share of the present labels that were written down, after the paper's list; not below `least`.

    The share is written positives an image over `k`, the number that an image is expected to have, since positives are
    all that the method learns from. With a tenth of all labels known it is a tenth; one label an image of VOC is about
    two thirds, and γ = 0.15. VOC's list goes on to 0.01, which on frozen features with 90 % known gave 75.2 mAP where
    0.15 gives 83.4: hence `least`.

    >>> auto_gamma(Labels.from_lists([[0], [1]], 2)), auto_gamma(Labels.from_lists([[0]] + [[]] * 9, 2))
    (0.15, 0.85)
    """
    written = int((labels.values > 0).sum()) / max(len(labels), 1)
    return max(published_gamma(data_set, min(written / k, 1.0)), least)


class PUMLC(Method):
    """Positive-unlabelled learning with a re-balance factor, adaptive temperatures and mixup (PU-MLC).

    L = L_var + λ·L_reg, Eq. 10, where L_var is Eq. 14 (`losses.pu.variational`) and L_reg Eqs. 8-9
    (`losses.pu.mixup`): the first half of the batch is mixed with the last half by one μ ~ Beta(δ, δ), and goes through
    the network again. Both are means over the classes here and sums in the paper.

    gamma           exponent of the re-balance factor; "published" is the paper's for VOC by the share of written labels
                    and "published-coco" its for COCO (with k = 2.9). The default "auto" departs from the paper: as
                    "published", but not below 0.15 (see `auto_gamma`). 0 switches the factor off (Tables 4, 6)
    tau             "adaptive" (Eq. 13) or a number; 1 is none (Tables 4, 5)
    alpha           of the adaptive temperature: 2 for VOC, 1 for COCO (Figure 6)
    lam, delta      λ and δ; λ = 0 spares the second pass through the network
    positives_in_u  whether the unlabelled set holds the positives too (Table 10)
    drop            "negatives", or "positives" to learn from what is absent instead (Table 7)
    absent          what a verified absent label is: "unlabelled", as published, or "cross-entropy", which uses it
    no_positive     what a class does in a step whose batch has no positive of it: "keep", as the published code, keeps
                    the unlabelled term, which pulls all its probabilities down; "skip" leaves L_var of the class out
    lgconv          a global branch beside every 3×3 convolution of a ResNet (`models.lgconv`, Table 9). Off by default,
                    since other backbones have no such convolutions
    k               labels that an image is expected to have, for these words of gamma: 1.5 on VOC
    variant         "released" follows the published code: probabilities are mixed instead of logits, with 1 where the
                    class is known to be present, and pairs are drawn at random; p_c of tempered logits; an epsilon in
                    every logarithm; a global branch with a residual
    The paper freezes all but the last stage (train.freeze = 4 of a ResNet) and keeps all batch-norm statistics
    (train.freeze_bn, Table 11).
    """

    paper = "Yuan, Zhang, Huang: Positive Label Is All You Need for Multi-Label Classification, 2023"
    start_bias = "log-odds"
    batch_coupled = True  # means over the batch inside of logarithms, and its spread
    _name: ClassVar[str] = "pu-mlc"

    def __init__(
        self,
        setup: Setup,
        gamma: float | str = "auto",
        tau: float | str = "adaptive",
        alpha: float = 2.0,
        lam: float = 1.0,
        delta: float = 0.3,
        positives_in_u: bool = True,
        drop: str = "negatives",
        absent: str = "unlabelled",
        lgconv: bool = False,
        k: float = 1.5,
        variant: str = "paper",
        no_positive: str = "keep",
    ) -> None:
        super().__init__()
        owner = f"method {self._name}"
        labels, k = setup.labels, number(owner, "k", k, above=0.0)
        if isinstance(gamma, str) and gamma in _GAMMAS:
            data_set, least = _GAMMAS[gamma]
            gamma = auto_gamma(labels, k, least, data_set) if labels is not None else 0.0  # prediction needs none
        self.gamma = _number_or(owner, "gamma", gamma, *_GAMMAS, low=0.0)
        self.tau = None if tau == "adaptive" else _number_or(owner, "tau", tau, "adaptive", low=MIN_TAU)
        self.alpha = number(owner, "alpha", alpha, above=0.0)
        self.lam = number(owner, "lam", lam, low=0.0)
        self.delta = number(owner, "delta", delta, above=0.0)
        self.positives_in_u = flag(owner, "positives_in_u", positives_in_u)
        self.sign = -1 if choice(owner, "drop", drop, ("negatives", "positives")) == "positives" else 1
        self.absent = choice(owner, "absent", absent, ABSENT)
        self.variant = choice(owner, "variant", variant, VARIANTS)
        self.no_positive = choice(owner, "no_positive", no_positive, NO_POSITIVE)
        self.form = "probabilities" if variant == "released" else "logits"
        if labels is not None and self.sign < 0 and not np.any(labels.values < 0):
            raise RecipeError(f"{owner}: drop = 'positives' learns from absent labels, and the data has none")
        self.net: nn.Module
        if flag(owner, "lgconv", lgconv):
            self.net = net = setup.make_network(f"{owner} with lgconv")
            add_global_branches(net.backbone, variant=variant)
        else:
            self.net = setup.make_net()

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        x = batch.views[0]
        z, y = self.sign * self.net(x), self.sign * batch.labels
        tau = adaptive_temperature(z, self.alpha) if self.tau is None else self.tau
        options = (self.gamma, tau, self.positives_in_u, self.absent, self.variant, self.no_positive)
        terms = {"variational": variational(z, y, *options)}
        if self.lam:
            pairs, mu = self._pairs(len(x), x.device), draw_beta(self.delta)
            wide = x.to(torch.promote_types(x.dtype, torch.float32))  # pictures may be uint8
            mixed = self.sign * self.net(mu * wide[pairs[0]] + (1 - mu) * wide[pairs[1]])
            terms["mixup"] = self.lam * mixup(z, y, mixed, pairs, mu, self.form, self.variant)
        return terms

    def predict(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits

    def _pairs(self, rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Rows of the first and of the last half; the middle of an odd number stays out, one row is its own pair."""
        half = max(rows // 2, 1)
        first = torch.randperm(half) if self.form == "probabilities" else torch.arange(half)
        return first.to(device), torch.arange(rows - half, rows, device=device)


class VPU(PUMLC):
    """Variational positive-unlabelled learning, a class at a time (vPU).

    L = log mean_U Φ − mean_P log Φ + λ·L_reg with Φ = σ(s): PU-MLC without its factor and temperatures. The regulariser
    mixes probabilities, with 1 for what is known to be present; without that anchor the loss would not notice a logit
    shifted by a constant, as long as probabilities are small. λ is 0.03, as its authors use; PU-MLC has 1.
    Their pairs have a positive and an unlabelled example each; with many classes a row is both, so pairs are any two.
    A verified absent label is one more unlabelled entry, or with `absent="cross-entropy"` is used. Their batches always
    hold positives; here a class that has none in a batch is left out of the first two terms in that step. With
    `no_positive="keep"` the unlabelled term alone pulls it down: on frozen features of VOC, batches of 32, that gave
    60.4 mAP where leaving it out gives 81.1.
    """

    paper = "Chen et al.: A Variational Approach for Learning from Positive and Unlabeled Data, NeurIPS 2020"
    start_bias = "zero"
    _name = "vpu"

    def __init__(
        self,
        setup: Setup,
        lam: float = 0.03,
        delta: float = 0.3,
        positives_in_u: bool = True,
        absent: str = "unlabelled",
        no_positive: str = "skip",
    ) -> None:
        super().__init__(
            setup,
            gamma=0.0,
            tau=1.0,
            lam=lam,
            delta=delta,
            positives_in_u=positives_in_u,
            absent=absent,
            no_positive=no_positive,
        )
        self.form = "probabilities"


def draw_beta(delta: float) -> float:
    """One number of Beta(δ, δ) from torch's generator for the CPU, whatever the device."""
    shape = torch.full((), delta, dtype=torch.float64)
    return float(torch.distributions.Beta(shape, shape).sample())


def _number_or(owner: str, name: str, value: float | str, *words: str, low: float) -> float:
    if isinstance(value, str):
        raise RecipeError(f"{owner}: {name} is {value!r}; give a number or {' or '.join(map(repr, words))}")
    return number(owner, name, value, low=low)
