"""Losses as small modules, called as `loss(logits, labels, epoch=0, epochs=1)`; the formulas are in `functional`."""

from __future__ import annotations

from typing import Any

from pluralis.errors import RecipeError, nearest
from pluralis.losses import functional
from pluralis.losses.assume_negative import AN, ANLS, DW, NLS, WAN
from pluralis.losses.base import Loss, parameters
from pluralis.losses.cross_entropy import BCE, PartialBCE
from pluralis.losses.csl import CSL
from pluralis.losses.entropy import EM, EntMin
from pluralis.losses.expected_positives import EPR
from pluralis.losses.focal import ASL, Focal
from pluralis.losses.framework import Framework
from pluralis.losses.hill import SPLC, Hill
from pluralis.losses.large_loss import LLR, LLCt
from pluralis.losses.robust import GR
from pluralis.losses.selection import Selection, estimate_rate, selection_posterior
from pluralis.losses.unbiased_risk import NNPU, UPU

__all__ = [
    "AN",
    "ANLS",
    "ASL",
    "BCE",
    "CSL",
    "DW",
    "EM",
    "EPR",
    "GR",
    "LLR",
    "LOSSES",
    "NLS",
    "NNPU",
    "SPLC",
    "UPU",
    "WAN",
    "EntMin",
    "Focal",
    "Framework",
    "Hill",
    "LLCt",
    "Loss",
    "PartialBCE",
    "Selection",
    "create_loss",
    "estimate_rate",
    "functional",
    "selection_posterior",
]

LOSSES: dict[str, type[Loss]] = {
    "bce": BCE,
    "an": AN,
    "em": EM,
    "gr": GR,
    "wan": WAN,
    "dw": DW,
    "an-ls": ANLS,
    "n-ls": NLS,
    "epr": EPR,
    "entmin": EntMin,
    "focal": Focal,
    "asl": ASL,
    "hill": Hill,
    "splc": SPLC,
    "ll-r": LLR,
    "ll-ct": LLCt,
    "partial-bce": PartialBCE,
    "csl": CSL,
    "upu": UPU,
    "nnpu": NNPU,
    "selection": Selection,
}


def create_loss(name: str, **params: Any) -> Loss:
    """The loss of that name with its parameters.

    >>> create_loss("em", alpha=0.1)
    EM(alpha=0.1)
    """
    if not isinstance(name, str) or name not in LOSSES:
        raise RecipeError(f"loss: unknown name {name!r}; {nearest(str(name), list(LOSSES))}")
    known = list(parameters(LOSSES[name]))
    for param in params:
        if param not in known:
            raise RecipeError(f"loss {name}: unknown parameter {param!r}; {nearest(param, known)}")
    return LOSSES[name](**params)
