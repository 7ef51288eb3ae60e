"""Every loss against its formula, and the identities between them."""

from __future__ import annotations

import inspect
from functools import partial

import numpy as np
import pytest
import torch

from pluralis.errors import LabelError, RecipeError
from pluralis.losses import LOSSES, create_loss, functional
from tests.losses.check_loss import Spec, check_loss, example, gradient


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def bce_reference(z, y, frozen):
    p = sigmoid(z)
    return np.select([y > 0, y < 0], [-np.log(p), -np.log(1 - p)], 0 * p)


def an_reference(z, y, frozen):
    p = sigmoid(z)
    return np.where(y > 0, -np.log(p), -np.log(1 - p))


def em_reference(z, y, frozen, alpha):
    p = sigmoid(z)
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p))
    return np.select([y > 0, y < 0], [-np.log(p), -np.log(1 - p)], -alpha * entropy)


def gr_reference(z, y, frozen, w, b, mu, sigma, q1, q2, q3):
    def robust(p, q):
        return -np.log(p) if q == 0 else -np.expm1(q * np.log(p)) / q

    p, constant = sigmoid(z), sigmoid(frozen)
    k = sigmoid(w * constant + b)
    v = np.exp(-((constant - mu) ** 2) / (2 * sigma**2))
    unknown = v * (k * robust(p, q2) + (1 - k) * robust(1 - p, q3))
    return np.select([y > 0, y < 0], [robust(p, q1), robust(1 - p, q3)], unknown)


def gr_spec(name: str, fades: bool = True, **params: float) -> Spec:
    full = {"w": 1.5, "b": -2.0, "mu": 0.7, "sigma": 0.6, "q1": 0.01, "q2": 0.01, "q3": 1.0} | params
    return Spec(name, partial(functional.gr, **full), partial(gr_reference, **full), detached=True, fades=fades)


SPECS = [
    Spec("bce", functional.bce, bce_reference, over_known=True, coupled=True),
    Spec("an", functional.an, an_reference),
    Spec("em", partial(functional.em, alpha=0.3), partial(em_reference, alpha=0.3)),
    gr_spec("gr"),
    gr_spec("gr, q1 apart", q1=0.3, q3=1.5),
    gr_spec("gr, logarithms", q1=0.0, q2=0.0, q3=0.0, fades=False),
    gr_spec("gr, first logarithm", q1=0.0, q2=1.0, q3=0.5, fades=False),
    gr_spec("gr, absolute errors", q1=1.0, q2=1.0, q3=1.0, w=-3.0),
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


@pytest.mark.parametrize("spec", [SPECS[2], SPECS[3]], ids=lambda s: s.name)
def test_graph_can_be_captured(spec):
    compiled_agrees(spec, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_compiled(spec):
    compiled_agrees(spec, "inductor")


def test_gr_without_pseudo_labels_and_weights_is_an():
    logits, labels = example()
    for q in (0.0, 1e-13):
        got = functional.gr(logits, labels, w=0.0, b=-1e3, mu=0.5, sigma=1e9, q1=q, q2=q, q3=q)
        torch.testing.assert_close(got, functional.an(logits, labels), rtol=1e-11, atol=0)


def test_em_without_entropy_leaves_the_known_labels():
    logits, labels = example()
    each = functional.em(logits, labels, alpha=0.0, reduction="none")
    torch.testing.assert_close(each, functional.bce(logits, labels, reduction="none"), rtol=1e-14, atol=0)
    assert (each[labels == 0] == 0).all()


def test_an_is_bce_of_negatives():
    logits, labels = example()
    filled = torch.where(labels == 0, -1, labels)
    torch.testing.assert_close(functional.an(logits, labels), functional.bce(logits, filled), rtol=1e-14, atol=0)
    target = (labels > 0).double()
    plain = torch.nn.functional.binary_cross_entropy_with_logits(logits, target)
    torch.testing.assert_close(functional.an(logits, labels), plain, rtol=1e-14, atol=0)


def test_bce_of_nothing_is_zero_with_a_graph():
    value, slope = gradient(functional.bce, torch.randn(3, 4), torch.zeros(3, 4))
    assert value == 0
    assert (slope == 0).all()


def test_digits_survive_in_single_precision():
    z = torch.tensor([[-12.0, 30.0, -30.0]])
    wide = functional.em(z.double(), torch.zeros(1, 3), reduction="none")
    torch.testing.assert_close(functional.em(z, torch.zeros(1, 3), reduction="none").double(), wide, rtol=1e-6, atol=0)
    value, slope = gradient(functional.an, z[:, 1:2], torch.ones(1, 1))
    assert value.item() == pytest.approx(np.exp(-30), rel=1e-6)
    assert slope.item() == pytest.approx(-np.exp(-30), rel=1e-6)


def test_modules_are_the_functions_with_schedules():
    logits, labels = example()
    gr = create_loss("gr", wT=10.0, bT=-8.0)
    expected = functional.gr(logits, labels, w=5.0, b=-5.0, mu=0.65, sigma=1.25)
    assert gr(logits, labels, epoch=4, epochs=8) == expected
    assert gr(logits, labels) == functional.gr(logits, labels, w=0.0, b=-2.0, mu=0.5, sigma=2.0)
    assert create_loss("em", alpha=0.1)(logits, labels) == functional.em(logits, labels, alpha=0.1)
    assert create_loss("an")(logits, labels, epoch=3, epochs=9) == functional.an(logits, labels)
    assert create_loss("bce")(logits, labels) == functional.bce(logits, labels)


def test_modules_describe_themselves():
    assert list(inspect.signature(LOSSES["an"]).parameters) == []
    assert inspect.signature(LOSSES["em"]).parameters["alpha"].default == 0.2
    assert repr(create_loss("em")) == "EM(alpha=0.2)"
    assert "q3=1.0" in repr(create_loss("gr"))
    for loss in LOSSES.values():
        assert loss.paper
        assert loss.start_bias in ("zero", "log-odds")
    assert [name for name, loss in LOSSES.items() if loss.batch_coupled] == ["bce"]


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("bcee", {}, "did you mean 'bce'"),
        ("nothing like it", {}, "choose from 'bce', 'an', 'em', 'gr'"),
        ("em", {"alfa": 1.0}, "did you mean 'alpha'"),
        ("an", {"alpha": 1.0}, "there are none"),
        ("em", {"alpha": -0.1}, "at least 0"),
        ("em", {"alpha": float("nan")}, "finite"),
        ("em", {"alpha": "0.2"}, "finite number"),
        ("gr", {"sigmaT": 0.0}, "above 0"),
        ("gr", {"q2": -1.0}, "at least 0"),
        ("gr", {"w0": float("inf")}, "finite"),
    ],
)
def test_bad_parameters_are_named(name, params, message):
    with pytest.raises(RecipeError, match=message):
        create_loss(name, **params)


def test_bad_inputs_are_named():
    with pytest.raises(LabelError, match=r"\(2, 3\).*\(2, 4\)"):
        functional.an(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(LabelError, match="int64"):
        functional.an(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3))
    with pytest.raises(LabelError, match="scalars"):
        functional.an(torch.tensor(0.0), torch.tensor(1))
    with pytest.raises(RecipeError, match="average"):
        functional.bce(torch.zeros(2, 3), torch.zeros(2, 3), reduction="average")
