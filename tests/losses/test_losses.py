"""Every loss against its formula: one table, one set of checks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from pluralis.losses import LOSSES, create_loss, functional
from tests.losses import references
from tests.losses.check_loss import Spec, check_loss, example, gradient


def spec(name: str, loss: Callable[..., Tensor], reference: Callable[..., np.ndarray], **options: object) -> Spec:
    """A spec whose function and reference take the same parameters, as far as these are not fields of `Spec`."""
    fields = {key: options.pop(key) for key in list(options) if key in Spec.__dataclass_fields__}
    return Spec(name, partial(loss, **options), partial(reference, **options), **fields)


def gr_spec(name: str, fades: bool = True, **params: float) -> Spec:
    full = {"w": 1.5, "b": -2.0, "mu": 0.7, "sigma": 0.6, "q1": 0.01, "q2": 0.01, "q3": 1.0} | params
    return spec(name, functional.gr, references.gr, detached=True, fades=fades, **full)


def smoothed(present: float, absent: float, unknown: float) -> Callable[..., np.ndarray]:
    return partial(references.smoothed, present=present, absent=absent, unknown=unknown)


def csl_spec(name: str, gammas: tuple[float, float, float], likely: int = 2, common: bool = False) -> Spec:
    params = dict(zip(("gamma_pos", "gamma_neg", "gamma_unann"), gammas, strict=True))
    which = {"common": torch.tensor([True])} if common else {}  # one for all classes: any number of them will do
    reference = partial(references.csl, gammas=gammas, likely=likely, common=common)
    return Spec(name, partial(functional.csl, **params, likely=likely, **which), reference, coupled=not common)


def ll_spec(name: str, flip: bool, share: float, coupled: bool = True) -> Spec:
    loss = partial(functional.ll_ct if flip else functional.ll_r, share=share)
    return Spec(name, loss, partial(references.ll, share=share, flip=flip), coupled=coupled)


def asl_spec(name: str, pos: float, neg: float, margin: float, held: bool = False) -> Spec:
    params = {"gamma_pos": pos, "gamma_neg": neg, "margin": margin}
    loss = partial(functional.asl, **params, variant="released" if held else "paper")
    return Spec(name, loss, partial(references.asl, **params, held=held), detached=held)


def pick_spec(name: str, a: float = 1.0, absent: bool = False) -> Spec:
    loss = partial(functional.selection, a=a, unlabelled="absent" if absent else "skip")
    return Spec(name, loss, partial(references.pick, a=a, absent=absent), rows=True)


def rate_spec(name: str, rate: float, absent: bool = False) -> Spec:
    loss = partial(functional.selection, mechanism="rate", rate=rate, unlabelled="absent" if absent else "skip")
    return Spec(name, loss, partial(references.written_at_a_rate, rate=rate, absent=absent), rows=True)


SPECS = [
    Spec("bce", functional.bce, references.bce, over_known=True, coupled=True),
    Spec("an", functional.an, references.an),
    spec("em", functional.em, references.em, alpha=0.3),
    gr_spec("gr"),
    gr_spec("gr, q1 apart", q1=0.3, q3=1.5),
    gr_spec("gr, logarithms", q1=0.0, q2=0.0, q3=0.0, fades=False),
    gr_spec("gr, first logarithm", q1=0.0, q2=1.0, q3=0.5, fades=False),
    gr_spec("gr, absolute errors", q1=1.0, q2=1.0, q3=1.0, w=-3.0),
    Spec("wan", functional.wan, references.wan),
    spec("dw", functional.dw, references.dw, weight=0.3),
    Spec("an-ls", partial(functional.an_ls, epsilon=0.3), smoothed(0.85, 0.15, 0.15), pull=-0.85, soft=True),
    Spec("n-ls", partial(functional.n_ls, epsilon=0.3), smoothed(1.0, 0.0, 0.3)),
    spec("epr", functional.epr, references.epr, k=2.5, whole=True, coupled=True),
    Spec("entmin", partial(functional.entmin, alpha=0.3), partial(references.em, alpha=-0.3)),
    spec("focal", functional.focal, references.focal, gamma=2.0, alpha=0.75, pull=-0.75),
    spec("focal, half a power", functional.focal, references.focal, gamma=0.5, alpha=0.25, pull=-0.25),
    asl_spec("asl", 0.0, 2.0, 0.2),
    asl_spec("asl, margin alone", 0.0, 0.0, 0.05),
    asl_spec("asl, no margin", 1.0, 4.0, 0.0),
    asl_spec("asl, half a power", 0.5, 1.5, 0.1),
    asl_spec("asl, equal", 1.0, 1.0, 0.3),
    asl_spec("asl, released", 1.0, 2.0, 0.2, held=True),
    asl_spec("asl, released without margin", 1.0, 3.0, 0.0, held=True),
    spec("hill", functional.hill, references.hill, lam=1.5, margin=1.0, gamma=2.0),
    spec("hill, plain", functional.hill, references.hill, lam=1.2, margin=0.0, gamma=0.0),
    spec("splc", functional.splc, references.splc),
    spec("splc, waiting", functional.splc, references.splc, gamma=1.5, correct=False),
    spec("splc, half a power", functional.splc, references.splc, gamma=0.5, margin=0.0, tau=0.3),
    spec("splc, hill", functional.splc, references.splc, variant="hill"),
    spec("splc, hill and waiting", functional.splc, references.splc, variant="hill", correct=False),
    spec("splc, hill and half a power", functional.splc, references.splc, variant="hill", gamma=0.5, margin=0.0),
    ll_spec("ll-r", False, 22 / 253),
    ll_spec("ll-r, all", False, 1.0, coupled=False),
    ll_spec("ll-ct", True, 22 / 253),
    ll_spec("ll-ct, all", True, 1.0, coupled=False),
    spec("partial-bce", functional.partial_bce, references.partial_bce, alpha=-4.45, beta=5.45, gamma=1.0, pull=-1.0),
    spec(
        "partial-bce, root", functional.partial_bce, references.partial_bce, alpha=2.0, beta=0.5, gamma=0.5, pull=-2.5
    ),
    csl_spec("csl", (0.0, 1.0, 2.0)),
    csl_spec("csl, half powers", (1.0, 0.5, 1.5)),
    csl_spec("csl, steep", (0.0, 0.0, 4.0), likely=1),
    csl_spec("csl, common", (0.0, 1.0, 2.0), common=True),
    Spec(
        "upu",
        partial(functional.upu, prior=0.4),
        partial(references.pu, prior=0.4, bounded=False),
        whole=True,
        coupled=True,
        pull=-1.2,
    ),
    Spec(
        "nnpu",
        partial(functional.nnpu, prior=0.6),
        partial(references.pu, prior=0.6, bounded=True),
        whole=True,
        coupled=True,
        pull=-1.8,
    ),
    Spec(
        "upu, known share",
        partial(functional.upu, prior=0.4, written=0.25),
        partial(references.pu, prior=0.4, bounded=False, written=0.25),
        whole=True,
        pull=-1.6,
    ),
    Spec(
        "nnpu, known share",
        partial(functional.nnpu, prior=0.6, written=0.25),
        partial(references.pu, prior=0.6, bounded=True, written=0.25),
        whole=True,
        coupled=True,
        pull=-2.4,
    ),
    pick_spec("selection"),
    pick_spec("selection, looked", absent=True),
    pick_spec("selection, towards absent", a=0.3),
    pick_spec("selection, towards unknown", a=3.5, absent=True),
    rate_spec("selection, rate", rate=0.4),
    rate_spec("selection, rate and looked", rate=0.9, absent=True),
    rate_spec("selection, every label", rate=1.0, absent=True),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_loss(spec):
    check_loss(spec)


def test_table_covers_all_losses():
    assert {spec.name.split(",")[0] for spec in SPECS} == set(LOSSES)


def compiled_agrees(spec: Spec, backend: str) -> None:
    logits, labels = (t[:16] for t in example())
    logits = logits.float()
    torch._dynamo.reset()
    compiled = torch.compile(spec.loss, backend=backend, fullgraph=True)
    for one, other in zip(gradient(compiled, logits, labels), gradient(spec.loss, logits, labels), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


CAPTURED = ("em", "gr", "asl", "splc", "ll-ct", "csl", "nnpu", "selection", "selection, rate")


@pytest.mark.parametrize("spec", [s for s in SPECS if s.name in CAPTURED], ids=lambda s: s.name)
def test_graph_can_be_captured(spec):
    compiled_agrees(spec, "aot_eager")


@pytest.mark.parametrize("name", ["an", "nnpu", "selection"])
def test_a_network_with_its_loss_can_be_exported(name):
    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.loss = torch.nn.Linear(4, 7), create_loss(name, **({"prior": 0.2} if name == "nnpu" else {}))

        def forward(self, x, labels):
            return self.loss(self.net(x), labels)

    inputs = torch.randn(24, 4), example()[1]
    whole = Whole()
    torch.testing.assert_close(torch.export.export(whole, inputs).module()(*inputs), whole(*inputs).detach())


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_compiled(spec):
    compiled_agrees(spec, "inductor")
