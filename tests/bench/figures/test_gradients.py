from __future__ import annotations

import numpy as np
import pytest

from pluralis.bench.figures.gradients import Asked, gradient, gradients
from pluralis.errors import RecipeError
from pluralis.losses import LOSSES

P = np.linspace(0.01, 0.99, 33)
Z = np.log(P / (1 - P))


@pytest.mark.parametrize("loss", ["bce", "an", "em", "selection", "ll-r"])
def test_present_labels_of_a_cross_entropy_have_p_minus_1(loss: str) -> None:
    assert gradient(Asked(loss), "present", P) == pytest.approx(P - 1, abs=1e-9)


def test_absent_and_unknown_labels() -> None:
    assert gradient(Asked("bce"), "absent", P) == pytest.approx(P, abs=1e-9)
    assert gradient(Asked("bce"), "unknown", P) == pytest.approx(0 * P)
    assert gradient(Asked("an"), "unknown", P) == pytest.approx(P, abs=1e-9)
    assert gradient(Asked("wan"), "unknown", P, classes=5) == pytest.approx(P / 4, rel=1e-6)


def test_entropy_maximisation_is_its_equation_5() -> None:
    got = gradient(Asked("em", params={"alpha": 0.3}), "unknown", P)
    assert got == pytest.approx(0.3 * Z * P * (1 - P), abs=1e-9)


@pytest.mark.parametrize(("epoch", "w", "b", "mu", "sigma"), [(0, 0.0, -2.0, 0.5, 2.0), (8, 10.0, -8.0, 0.8, 0.5)])
def test_gr_is_its_equation_18_with_its_weight(epoch: int, w: float, b: float, mu: float, sigma: float) -> None:
    asked = Asked("gr", params={"wT": 10.0, "bT": -8.0, "q3": 1.5}, epoch=epoch, epochs=8)
    k, v = 1 / (1 + np.exp(-(w * P + b))), np.exp(-((P - mu) ** 2) / (2 * sigma**2))
    expected = v * ((1 - k) * (1 - P) ** 1.5 * P - k * P**0.01 * (1 - P))
    assert gradient(asked, "unknown", P) == pytest.approx(expected, abs=1e-9)


def test_hill_and_selection() -> None:
    assert gradient(Asked("hill"), "unknown", P) == pytest.approx((3 * P - 3 * P**2) * P * (1 - P), abs=1e-9)
    assert gradient(Asked("selection"), "unknown", P, classes=2) == pytest.approx(P * (1 - P) / (2 - P), abs=1e-6)


def test_a_loss_that_leaves_out_the_largest_does_so_among_the_examined() -> None:
    got = gradient(Asked("ll-r", params={"delta": 0.01}, epoch=2, epochs=10), "unknown", P)
    left_out = got == 0
    count = np.ceil(0.02 * 66 * 20)  # of all entries of the batch
    assert left_out.sum() == count
    assert left_out[-int(count) :].all()
    assert got[~left_out] == pytest.approx(P[~left_out], abs=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("label", ["present", "unknown", "absent"])
def test_every_loss_has_a_finite_curve(loss: str, label: str) -> None:
    got = gradient(Asked(loss), label, [1e-6, 0.5, 1 - 1e-6])
    assert got.shape == (3,)
    assert np.isfinite(got).all()


def test_few_losses_share_two_panels_and_many_have_one_each() -> None:
    table = {"loss": "gr", "name": "gr, start", "epoch": 0}
    figure = gradients(losses=["an", table], against="logit")
    present, unknown = figure.axes
    assert [line.get_label() for line in unknown.get_lines()[:2]] == ["an", "gr, start"]
    x, y = unknown.get_lines()[0].get_data()
    assert (x[0], x[-1]) == (pytest.approx(-6), pytest.approx(6))
    assert y == pytest.approx(1 / (1 + np.exp(-x)))
    assert figure.get_supxlabel() == "logit of the label"
    assert [axes.get_title() for axes in gradients().axes] == list(LOSSES)
    assert present.get_title() == "annotated positives"


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ([7], "give the name of a loss"),
        (["hil"], "did you mean 'hill'"),
        ([{"loss": "em", "param": {}}], "did you mean 'params'"),
        ([{"loss": "em", "epoch": 11}], "epoch is 11"),
        (["an", "an"], "same name"),
    ],
)
def test_bad_losses_are_refused(losses: list[object], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        gradients(losses=losses)
