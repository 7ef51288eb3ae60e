"""The likelihood of the labels that somebody wrote down: of those present, one was picked, or each with a rate.

Every other loss here says what an unknown label should count as. This one says how it came to be unknown, and what it
counts as follows. The same likelihood chooses between models where only partial labels are at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pluralis.errors import RecipeError
from pluralis.inputs import Array, Matrix, as_tensor
from pluralis.labels import Labels
from pluralis.losses.base import Loss
from pluralis.losses.kernels import check_batch
from pluralis.losses.rate_tally import RateTally
from pluralis.losses.rowwise import RowKernel, rowwise, walk_rows
from pluralis.losses.selection_one import one_likelihood, one_posterior
from pluralis.losses.selection_rate import UNLABELLED, estimate_rate, learned_rate, rate_likelihood, rate_posterior
from pluralis.params import choice, number, number_or_list

__all__ = ["Selection", "estimate_rate", "selection", "selection_nll", "selection_posterior"]

MECHANISMS = ("one", "rate")
_OWNER = "loss selection"
Rate = float | Sequence[float] | Array


def selection(
    logits: Tensor,
    labels: Tensor,
    mechanism: str = "one",
    rate: Rate | None = None,
    a: float = 1.0,
    unlabelled: str = "skip",
    reduction: str = "mean",
    several: bool | None = None,
) -> Tensor:
    """−log P(written labels | image), the labels being independent given the image and written as `mechanism` says.

        L = −(1/NC) Σ_n [ Σ_O log p + Σ_A log(1−p) + log ∫₀¹ Π_{j∈U} (1 − p_j (1−t)) dπ(t) ]

    O are the written labels of image n, A the verified absent ones, U the unknown ones; t is the chance that a present
    label is *not* written. With r the chance that an unknown label is present given what was written, ∂(NC·L)/∂z is
    p − r on U, p − 1 on O and p on A (Fisher's identity): no graph goes through the integral.

    mechanism="one": one of the m present labels was picked, any equally likely. Since 1/m = ∫₀¹ t^{m−1} dt, π is
    uniform and there is no parameter. Of several written labels, k, any k of the m were picked with the same chance:
    1/binom(m, k) = k ∫₀¹ t^{m−k} (1−t)^{k−1} dt, π = Beta(1, k); more than 32 count as 32. `a` gives π = Beta(a, k):
    a → 0 counts unknown labels as absent, a → ∞ ignores them.
    mechanism="rate": each present label was written with the chance `rate` = ρ, a number or [C]; t = 1 − ρ, so that
    the integral is a plain product (Elkan and Noto, KDD 2008). ρ = 1 is `an`, ρ = 0 leaves the known labels alone.
    The constant Σ_O log ρ is left out.
    unlabelled: a row in which no label is written. "skip": nobody looked, its unknown labels have no loss. "absent":
    somebody looked and wrote nothing; then nothing is present ("one"), or nothing was kept ("rate": the formula as it
    is; right where rows come out empty by chance). Its verified absent labels count either way.

    several: whether some rows have more than one written label, if that is known. It matters on a GPU to what has no
    kernel of its own (float64, or no Triton): less is done where none has, and nothing waits to see it.

    The mean runs over N·C, "none" gives one loss a row, [N].

    The relative error of each row's loss, of each entry of its derivative and of the posterior is under 1e-6 for up to
    10,000 classes and a ≥ 0.1, whatever Σp is, and in float64 under 1e-11, or 2e-7 where more than five labels are
    written; that of a loss near 0 is under 1e-11 as it is. It is each entry's own, not that of the largest: what is
    smaller than 1e-37 has no digits in float32.

    >>> z = torch.zeros(1, 3)                       # P = 1/2·(1/4·1 + 1/2·1/2 + 1/4·1/3) = 7/24
    >>> selection(z, torch.tensor([[1, 0, 0]]), reduction="sum").neg().exp()
    tensor(0.2917)
    >>> selection(z, torch.tensor([[1, 0, 0]]), "rate", rate=0.5, reduction="sum").neg().exp()    # 1/2·(3/4)²
    tensor(0.2812)
    """
    kernel = _kernel(logits, mechanism, rate, a, unlabelled, posterior=False, several=several)
    return rowwise(kernel, logits, labels, reduction)


def selection_posterior(
    logits: Array,
    labels: Matrix,
    mechanism: str = "one",
    rate: Rate | None = None,
    a: float = 1.0,
    unlabelled: str = "skip",
) -> Tensor:
    """[N, C] the chance that each label is present given what was written: 1 on written labels, 0 on absent ones.

    r_j = p_j ∫ t Π_{k∈U∖j} (1 − p_k (1−t)) dπ(t) / ∫ Π_{k∈U} (1 − p_k (1−t)) dπ(t), in the words of `selection`; for
    a rate it is p (1−ρ)/(1 − ρp). A row without any written label keeps its p if nobody looked ("skip"). No graph.
    A rate may lie on another device than the logits, which may be a numpy array, and the labels `Labels`.

    >>> selection_posterior(torch.zeros(1, 3), torch.tensor([[1, 0, -1]]))          # (1/2·1/2)/(1/2·1/2 + 1/2·1)
    tensor([[1.0000, 0.3333, 0.0000]])
    """
    logits = as_tensor("selection_posterior", "logits", logits)
    labels = as_tensor("selection_posterior", "labels", labels)
    check_batch(logits, labels)
    kernel = _kernel(logits, mechanism, rate, a, unlabelled, posterior=True)
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

    `rate`, for mechanism "rate": a number, or one for each class; None to learn one while training, or "class" to learn
    one for each class, for which `start` must know the labels. A learned rate starts at 1/2 and enters with its full
    likelihood, Σ_O log ρ included. It can be told from p only where some images show a class beyond doubt: were p the
    same for all of them, halving ρ and doubling p would change nothing. `rates` gives what was learned, `figures` puts
    it into the history with its standard error (the mean over classes). Both are of the training rows: a network that
    learns these by heart finds the unwritten labels absent, and the rate too high and too surely known. Rely on the one
    of held-out rows, which `calibration.calibrate` fits along with the calibration.

    The network should start from predictions that agree with a rate of 1/2, as `start_bias` gives them: those that know
    the written labels alone drive the rate up, and the weights follow.

    The parameter `rate_log_odds` learns at `lr_factor` times the learning rate (with Adam at `lr_most` at most, unless
    the weights are faster) and without weight decay. In a loop of your own give it to the optimizer in a group of its
    own, `{"params": loss.parameters(), "lr": 100 * lr, "weight_decay": 0.0}` for Adam at learning rates that suit a
    pre-trained network (up to 1e-3); at the higher ones of a new network, and for SGD, the learning rate of the weights
    will do. A rate that moves much faster than the network follows its first predictions, up to ρ = 1.

    >>> Selection()(torch.zeros(1, 3), torch.tensor([[1, 0, 0]]))                               # log(24/7)/3
    tensor(0.4107)
    >>> Selection(mechanism="rate").rates().tolist()
    [0.5]
    """

    paper = "Elkan, Noto: Learning Classifiers from Only Positive and Unlabeled Data, KDD 2008; the pick is our own"
    start_bias = "log-odds"  # where every class starts at p = 1/2 the gradient is nearly flat
    lr_factor = 100.0  # log-odds have far to go compared with the weights of a network
    lr_most = 0.1  # a rate that outruns the network follows its first predictions
    rate_each: Tensor | None

    def __init__(
        self, mechanism: str = "one", rate: Rate | str | None = None, a: float = 1.0, unlabelled: str = "skip"
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
        by_class = isinstance(rate, str)
        self.rate = rate if rate is None or by_class else number_or_list(_OWNER, "rate", rate, 0.0, high=1.0)
        each = torch.tensor(self.rate) if isinstance(self.rate, list) else None
        self.register_buffer("rate_each", each, persistent=False)
        learned = mechanism == "rate" and (rate is None or by_class)
        self.rate_log_odds = nn.Parameter(torch.zeros(0 if by_class else 1)) if learned else None
        self.tally = RateTally(len(self.rate_log_odds)) if self.rate_log_odds is not None else None
        self.start_rate = 0.5 if learned else 1.0
        self.several: bool | None = None  # whether a row has more than one written label; None for not known

    def _start(self, labels: Labels) -> None:
        rows, _, values = labels.entries()
        self.several = bool((np.bincount(rows[values > 0], minlength=1) > 1).any())
        if self.rate == "class":
            self._make_room(len(labels.classes))

    def _make_room(self, classes: int) -> None:
        """For so many rates, at 1/2, in the parameter that there is: an optimizer may hold it already."""
        assert self.rate_log_odds is not None
        self.rate_log_odds.grad = None
        self.rate_log_odds.data = self.rate_log_odds.new_zeros(classes)
        self.tally = RateTally(classes).to(self.rate_log_odds.device)

    def rates(self) -> Tensor:
        """The rates of writing, [1] or [C]."""
        if self.rate_log_odds is not None:
            return self.rate_log_odds.detach().sigmoid()
        if self.rate_each is not None:
            return self.rate_each
        if self.mechanism == "one":
            raise RecipeError(f'{_OWNER}: one label was picked, so there is no rate; set mechanism = "rate"')
        return torch.tensor([self.rate])

    def how_written(self) -> dict[str, Any]:
        """Keywords of `selection_posterior`: how labels come to be written, a learned rate as it is now."""
        rate = self.rate if self.mechanism == "one" or isinstance(self.rate, float) else self.rates()
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
        if self.rate_log_odds is None:
            several = self.several
            if several is False and logits.is_cpu and not torch.compiler.is_compiling():
                several = None  # other labels than those of `start` may come, and a CPU need not wait to see it
            return selection(logits, labels, **self.how_written(), several=several)
        classes = logits.shape[-1]
        if len(self.rate_log_odds) not in (1, classes):
            raise RecipeError(
                f'{_OWNER}: {len(self.rate_log_odds)} rates for {classes} classes; with rate = "class" call '
                "start(labels) with the training labels first"
            )
        absent = self.unlabelled == "absent"
        total = learned_rate(logits, labels, self.rate_log_odds.expand(classes), absent)
        if self.training and self.tally is not None:
            self.tally.add(logits, labels, self.rates(), absent, epoch)
        return total

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        name, old = prefix + "rate_log_odds", prefix + "rate_logit"
        if old in state_dict:  # as they were stored once, in hundreds
            state_dict[name] = state_dict.pop(old) * 100
        if self.rate == "class" and name in state_dict:
            self._make_room(len(state_dict[name]))  # one without labels cannot know how many there are
        super()._load_from_state_dict(state_dict, prefix, *args)


def check_writing(owner: str, mechanism: str, rate: Rate | None, a: float, classes: int) -> float | Tensor | None:
    """The rate as a number or a tensor, [C] or of one; raises for what does not fit together or is no chance.

    A rate on a device is taken as it is, so that nothing waits for it.
    """
    if choice(owner, "mechanism", mechanism, MECHANISMS) == "one":
        if rate is not None:
            raise RecipeError(f'{owner}: rate is {rate!r}, but one label was picked; set mechanism="rate"')
        number(owner, "a", a, above=0.0, high=1e6)
        return None
    if a != 1.0:
        raise RecipeError(f'{owner}: a is {a!r}, but with a rate there is no a; set mechanism="one"')
    if rate is None:
        raise RecipeError(f"{owner}: mechanism 'rate' needs a rate; give one, or let `estimate_rate` find it")
    if not isinstance(rate, Tensor):
        found = number_or_list(owner, "rate", rate, 0.0, high=1.0)
        if isinstance(found, float):
            return found
        rate = torch.tensor(found, dtype=torch.float64)
    if rate.shape not in ((), (1,), (classes,)):
        raise RecipeError(
            f"{owner}: rate has shape {tuple(rate.shape)} for {classes} classes; give a number, or one for each class"
        )
    if rate.is_cpu and not torch.compiler.is_compiling() and not bool(((rate >= 0) & (rate <= 1)).all()):
        raise RecipeError(f"{owner}: rate is {rate.tolist()}; give chances from 0 to 1")
    return rate.detach()


def _kernel(
    logits: Tensor,
    mechanism: str,
    rate: Rate | None,
    a: float,
    unlabelled: str,
    posterior: bool,
    several: bool | None = None,
) -> RowKernel:
    absent = choice(_OWNER, "unlabelled", unlabelled, UNLABELLED) == "absent"
    found = check_writing(_OWNER, mechanism, rate, a, logits.shape[-1] if logits.dim() else 1)
    if found is None:
        return (one_posterior if posterior else one_likelihood)(float(a), absent, several)
    return (rate_posterior if posterior else rate_likelihood)(found, absent)
