"""The losses as pure functions of logits [N, C] and labels [N, C] in {+1 present, 0 unknown, -1 verified absent}.

Every function whose entries have a loss of their own takes `reduction="mean" | "sum" | "none"`. Papers take the sum,
the mean, or divide by N; here the mean runs over all N·C entries unless the function says otherwise, so that one
learning rate suits all.
"""

from pluralis.losses.assume_negative import an, an_ls, dw, n_ls, wan
from pluralis.losses.cross_entropy import bce, partial_bce
from pluralis.losses.csl import csl
from pluralis.losses.entropy import em, entmin
from pluralis.losses.expected_positives import epr
from pluralis.losses.focal import asl, focal
from pluralis.losses.hill import hill, splc
from pluralis.losses.large_loss import ll_ct, ll_r
from pluralis.losses.robust import gr
from pluralis.losses.selection import selection
from pluralis.losses.unbiased_risk import nnpu, upu

__all__ = [
    "an",
    "an_ls",
    "asl",
    "bce",
    "csl",
    "dw",
    "em",
    "entmin",
    "epr",
    "focal",
    "gr",
    "hill",
    "ll_ct",
    "ll_r",
    "n_ls",
    "nnpu",
    "partial_bce",
    "selection",
    "splc",
    "upu",
    "wan",
]
