"""Methods by name, and the bias that their heads start from."""

from __future__ import annotations

import math

import pytest
import torch

from pluralis.errors import RecipeError
from pluralis.labels import Labels
from pluralis.method import Setup
from pluralis.methods import create_method, describe_methods, method_class, start_heads, start_values
from pluralis.models import create_model

LABELS = Labels.from_lists([[0], [0], [0], [1], []], 3, negatives=[[], [], [], [], [1]])


def test_log_odds_of_the_observed_frequencies() -> None:
    """3, 1 and 0 of 5 rows, half a count added to each side so that a class without positives stays finite."""
    expected = [math.log(3.5 / 2.5), math.log(1.5 / 4.5), math.log(0.5 / 5.5)]
    assert start_values(LABELS, "log-odds").tolist() == pytest.approx(expected)
    assert start_values(LABELS, "zero").tolist() == [0, 0, 0]


@pytest.mark.parametrize(("classes", "share"), [(3, 0.5), (20, 0.5), (21, 10 / 21), (1000, 0.01)])
def test_an_equal_start_is_half_of_the_classes_or_ten(classes: int, share: float) -> None:
    labels = Labels.from_lists([[0], [1]], classes)
    assert start_values(labels, "equal").sigmoid().tolist() == pytest.approx([share] * classes)


@pytest.mark.parametrize("name", ["bce", "an", "em", "gr"])
def test_every_method_states_its_bias_and_gets_it(name: str) -> None:
    net = create_model("tiny", 3)
    method = create_method(name, Setup(lambda: net, 3, LABELS))
    assert method.start_bias == method_class(name).start_bias
    start_heads(method, LABELS)
    assert torch.equal(net.head.get_parameter("fc.bias"), start_values(LABELS, method.start_bias))


@pytest.mark.parametrize("head", ["lse", "csra"])
def test_class_maps_start_equal_if_the_backbone_learns_and_no_bias_is_stated(head: str) -> None:
    """The students of a method that starts heads anew as well."""
    for frozen, stated, expected in (
        (False, "method", "equal"),
        (True, "method", "log-odds"),
        (False, "log-odds", "log-odds"),
    ):
        net = create_model("tiny", 3, head)
        if frozen:
            net.freeze("all")
        method = create_method("selection", Setup(lambda net=net: net, 3, LABELS))
        start_heads(method, LABELS, stated)
        logits = net.head(torch.zeros(1, net.head.get_parameter("fc.weight").shape[1], 2, 2))[0]
        assert torch.allclose(logits, start_values(LABELS, expected)), (frozen, stated)
        assert (method.start_bias, method.restart_bias) == (expected, expected)


@pytest.mark.parametrize("head", ["linear", "mlp", "lse"])
def test_gr_starts_equal_above_a_backbone_that_learns_and_from_log_odds_otherwise(head: str) -> None:
    """Whatever the head; of many classes, so that an equal start is neither zero nor log-odds."""
    labels = Labels.from_lists([[0], [0], [1]], 40)
    for frozen, stated, expected in (
        (False, "method", "equal"),
        (True, "method", "log-odds"),
        (False, "zero", "zero"),
    ):
        net = create_model("tiny", 40, head)
        if frozen:
            net.freeze("all")
        method = create_method("gr", Setup(lambda net=net: net, 40, labels))
        start_heads(method, labels, stated)
        bias = next(p for name, p in reversed(list(net.head.named_parameters())) if name.endswith("bias"))
        assert torch.equal(bias, start_values(labels, expected)), (frozen, stated)
        assert method.start_bias == expected


@pytest.mark.parametrize("name", ["selection", "bce", "pu-mlc", "relabel"])
def test_a_linear_head_of_others_starts_from_log_odds_in_any_case(name: str) -> None:
    method = create_method(name, Setup(lambda: create_model("tiny", 3), 3, LABELS))
    start_heads(method, LABELS)
    assert (method.start_bias, method.restart_bias) == ("log-odds", "log-odds")


def test_unknown_names() -> None:
    with pytest.raises(RecipeError, match="did you mean 'gr'"):
        method_class("grr")
    with pytest.raises(RecipeError, match="log-odds"):
        start_heads(create_method("an", Setup(lambda: create_model("tiny", 3), 3)), LABELS, "middle")


def test_descriptions_are_complete() -> None:
    for entry in describe_methods():
        assert entry["paper"]
        assert entry["what"]
        assert entry["start_bias"] in ("zero", "log-odds")
        assert entry["deep_start_bias"] == ("equal" if entry["name"] == "gr" else "")
