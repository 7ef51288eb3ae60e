"""The likelihood of the labels that somebody wrote down: of those present, one was picked, or each with a rate.

Every other loss here says what an unknown label should count as. This one says how it came to be unknown, and what it
counts as follows. The same likelihood chooses between models where only partial labels are at hand.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pluralis.errors import RecipeError
from pluralis.labels import Labels
from pluralis.losses.base import Loss
from pluralis.losses.kernels import check_batch
from pluralis.losses.rate_tally import RateTally
from pluralis.losses.rowwise import RowKernel, rowwise, walk_rows
from pluralis.losses.selection_one import one_likelihood, one_posterior
from pluralis.losses.selection_rate import UNLABELLED, estimate_rate, learned_rate, rate_likelihood, rate_posterior
from pluralis.params import choice, number

__all__ = ["Selection", "estimate_rate", "selection", "selection_nll", "selection_posterior"]

MECHANISMS = ("one", "rate")
_OWNER = "loss selection"
_PACE = 100.0  # log-odds in one unit of a learned rate: steps that suit the weights of a network then suit it


def selection(
    logits: Tensor,
    labels: Tensor,
    mechanism: str = "one",
    rate: float | Tensor | None = None,
    a: float = 1.0,
    unlabelled: str = "skip",
    reduction: str = "mean",
) -> Tensor:
    """−log P(written labels | image), the labels being independent given the image and written as `mechanism` says.

        L = −(1/NC) Σ_n [ Σ_O log p + Σ_A log(1−p) + log ∫₀¹ Π_{j∈U} (1 − p_j (1−t)) dπ(t) ]

    O are the written labels of image n, A the verified absent ones, U the unknown ones; t is the chance that a present
    label is *not* written. With r the chance that an unknown label is present given what was written, ∂(NC·L)/∂z is
    p − r on U, p − 1 on O and p on A (Fisher's identity): no graph goes through the integral.

    mechanism="one": one of the m present labels was picked, any equally likely. Since 1/m = ∫₀¹ t^{m−1} dt, π is
    uniform and there is no parameter. Several written labels: the last of them was picked from what the others left.
    `a` gives π = Beta(a, 1): a → 0 counts unknown labels as absent, a → ∞ ignores them.
    mechanism="rate": each present label was written with the chance `rate` = ρ, a number or [C]; t = 1 − ρ, so that
    the integral is a plain product (Elkan and Noto, KDD 2008). ρ = 1 is `an`, ρ = 0 leaves the known labels alone.
    The constant Σ_O log ρ is left out.
    unlabelled: a row in which no label is written. "skip": nobody looked, its unknown labels have no loss. "absent":
    somebody looked and wrote nothing; then nothing is present ("one"), or nothing was kept ("rate": the formula as it
    is; right where rows come out empty by chance). Its verified absent labels count either way.

    The mean runs over N·C, "none" gives one loss a row, [N]. The relative error is under 1e-6, in float64 under 1e-12.

    >>> z = torch.zeros(1, 3)                       # P = 1/2·(1/4·1 + 1/2·1/2 + 1/4·1/3) = 7/24
    >>> selection(z, torch.tensor([[1, 0, 0]]), reduction="sum").neg().exp()
    tensor(0.2917)
    >>> selection(z, torch.tensor([[1, 0, 0]]), "rate", rate=0.5, reduction="sum").neg().exp()    # 1/2·(3/4)²
    tensor(0.2812)
    """
    return rowwise(_kernel(mechanism, rate, a, unlabelled, posterior=False), logits, labels, reduction)


def selection_posterior(
    logits: Tensor,
    labels: Tensor,
    mechanism: str = "one",
    rate: float | Tensor | None = None,
    a: float = 1.0,
    unlabelled: str = "skip",
) -> Tensor:
    """[N, C] the chance that each label is present given what was written: 1 on written labels, 0 on absent ones.

    r_j = p_j ∫ t Π_{k∈U∖j} (1 − p_k (1−t)) dπ(t) / ∫ Π_{k∈U} (1 − p_k (1−t)) dπ(t), in the words of `selection`; for
    a rate it is p (1−ρ)/(1 − ρp). A row without any written label keeps its p if nobody looked ("skip"). No graph.
    A rate may lie on another device than the logits.

    >>> selection_posterior(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]))          # (1/2·1/2)/(1/2·1/2 + 1/2·1)
    tensor([[1.0000, 0.3333, 0.0000]])
    """
    check_batch(logits, labels)
    rate = rate.to(logits.device) if isinstance(rate, Tensor) else rate
    kernel = _kernel(mechanism, rate, a, unlabelled, posterior=True)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    found = walk_rows(kernel, wide, labels)[1]
    assert found is not None
    return found


def selection_nll(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """[N] in float64 the loss of each row for one picked label, a sum over classes, and its derivative [N, C].

    Both without a graph, for a search that needs no more, such as a calibration; see `selection`.

    >>> selection_nll(torch.zeros(1, 3), torch.tensor([[1, 0, 0]]))[0].exp()
    tensor([3.4286], dtype=torch.float64)
    """
    check_batch(logits, labels)
    nll, slope, _ = walk_rows(one_likelihood(1.0, absent=False), logits, labels)
    assert slope is not None
    return nll, slope


class Selection(Loss):
    """The likelihood of what was written down: one picked label, or each at a rate (see `functional.selection`).

    `rate`, for mechanism "rate": a number, None to learn one while training, or "class" to learn one for each class.
    A learned rate starts at 1/2 and enters with its full likelihood, Σ_O log ρ included. It can be told from p only
    where some images show a class beyond doubt: were p the same for all of them, halving ρ and doubling p would change
    nothing. `rates` gives what was learned, `figures` puts it into the history with its standard error (the mean over
    classes); `estimate_rate` finds the rate from held-out rows.

    >>> Selection()(torch.zeros(1, 3), torch.tensor([[1, 0, 0]]))                               # log(24/7)/3
    tensor(0.4107)
    >>> Selection(mechanism="rate").rates().tolist()
    [0.5]
    """

    paper = "Elkan, Noto: Learning Classifiers from Only Positive and Unlabeled Data, KDD 2008; the pick is our own"
    start_bias = "log-odds"  # where every class starts at p = 1/2 the gradient is nearly flat

    def __init__(
        self, mechanism: str = "one", rate: float | str | None = None, a: float = 1.0, unlabelled: str = "skip"
    ) -> None:
        super().__init__()
        self.mechanism = choice(_OWNER, "mechanism", mechanism, MECHANISMS)
        self.unlabelled = choice(_OWNER, "unlabelled", unlabelled, UNLABELLED)
        self.a = number(_OWNER, "a", a, above=0.0, high=1e6)
        if mechanism == "one" and rate is not None:
            raise RecipeError(f'{_OWNER}: rate is {rate!r}, but one label was picked; set mechanism = "rate"')
        if mechanism == "rate" and self.a != 1.0:
            raise RecipeError(f'{_OWNER}: a is {a!r}, but with a rate there is no a; set mechanism = "one"')
        if isinstance(rate, str) and rate != "class":
            raise RecipeError(f'{_OWNER}: rate is {rate!r}; give a number, or "class", or leave it out to learn one')
        self.rate = rate if rate is None or isinstance(rate, str) else number(_OWNER, "rate", rate, 0.0, 1.0)
        learned = mechanism == "rate" and not isinstance(self.rate, float)
        self.rate_logit = nn.Parameter(torch.zeros(0 if rate == "class" else 1)) if learned else None
        self.tally = RateTally(len(self.rate_logit)) if self.rate_logit is not None else None

    def start(self, labels: Labels) -> None:
        if self.rate == "class" and self.rate_logit is not None:
            self.rate_logit = nn.Parameter(self.rate_logit.new_zeros(len(labels.classes)))
            self.tally = RateTally(len(labels.classes)).to(self.rate_logit.device)

    def rates(self) -> Tensor:
        """The rates of writing, [1] or [C]."""
        if self.rate_logit is not None:
            return (self.rate_logit.detach() * _PACE).sigmoid()
        if self.mechanism == "one":
            raise RecipeError(f'{_OWNER}: one label was picked, so there is no rate; set mechanism = "rate"')
        return torch.tensor([self.rate])

    def how_written(self) -> dict[str, Any]:
        """Keywords of `selection_posterior`: how labels come to be written, a learned rate as it is now."""
        rate = self.rate if self.rate_logit is None else self.rates()
        return {"mechanism": self.mechanism, "rate": rate, "a": self.a, "unlabelled": self.unlabelled}

    def figures(self) -> dict[str, float]:
        """A learned rate and its standard error; of several their mean, whose error takes them as independent."""
        if self.tally is None:
            return {}
        rates, errors = self.rates().double(), self.tally.errors()
        known = errors.isfinite()
        if not bool(known.any()):
            return {"rate": float(rates.mean())} if len(rates) else {}
        error = float(errors[known].square().sum().sqrt() / known.sum())
        return {"rate": float(rates[known].mean()), "rate error": error}

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        if self.rate_logit is None:
            rate = self.rate if isinstance(self.rate, float) else None
            return selection(logits, labels, self.mechanism, rate, self.a, self.unlabelled)
        classes = logits.shape[-1]
        if len(self.rate_logit) not in (1, classes):
            raise RecipeError(
                f'{_OWNER}: {len(self.rate_logit)} rates for {classes} classes; with rate = "class" call start(labels) '
                "with the training labels first"
            )
        if self.training and self.tally is not None:
            self.tally.add(logits, labels, self.rates(), self.unlabelled == "absent", epoch)
        log_odds = (self.rate_logit * _PACE).expand(classes)
        return learned_rate(logits, labels, log_odds, self.unlabelled == "absent")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        stored = state_dict.get(prefix + "rate_logit")
        if self.rate == "class" and self.rate_logit is not None and stored is not None:
            # one without labels cannot know how many there are
            self.rate_logit = nn.Parameter(torch.empty_like(stored, device=self.rate_logit.device))
            self.tally = RateTally(len(stored)).to(self.rate_logit.device)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _kernel(mechanism: str, rate: float | Tensor | None, a: float, unlabelled: str, posterior: bool) -> RowKernel:
    absent = choice(_OWNER, "unlabelled", unlabelled, UNLABELLED) == "absent"
    if choice(_OWNER, "mechanism", mechanism, MECHANISMS) == "one":
        return (one_posterior if posterior else one_likelihood)(a, absent)
    if rate is None:
        raise RecipeError(f"{_OWNER}: mechanism 'rate' needs a rate; give one, or let `estimate_rate` find it")
    return (rate_posterior if posterior else rate_likelihood)(rate, absent)
