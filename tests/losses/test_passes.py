"""On a device time is launches where tensors are small and passes over memory where they are large: both are bounded.

The losses run on the meta device, which takes the way of an accelerator without computing anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pluralis.labels import Labels
from pluralis.losses import create_loss, selection_one
from pluralis.losses.contrast import label_contrast
from pluralis.losses.kernels import softplus
from pluralis.losses.selection import selection
from tests.losses.passes import Passes

RATE = {"mechanism": "rate", "rate": 0.5}
LIMITS = [  # loss, parameters, launches, and tensors of float32 that are read or written, at 1024 × 10,000
    ("focal", {}, 22, 45),
    ("asl", {}, 28, 58),
    ("hill", {}, 30, 66),
    ("splc", {}, 26, 51),
    ("splc", {"variant": "hill"}, 33, 71),
    ("csl", {}, 39, 56),
    ("selection", {}, 43, 104),
    ("selection", RATE, 37, 64),
]


def passes(name: str, params: dict[str, Any], rows: int, classes: int) -> Passes:
    """Of the value and the gradient."""
    known = np.zeros((1, classes), np.int8)
    known[0, 0] = 1
    loss = create_loss(name, **params)
    loss.start(Labels.from_dense(known))
    loss.to("meta")
    logits = torch.empty(rows, classes, device="meta", requires_grad=True)
    labels = torch.empty(rows, classes, dtype=torch.int8, device="meta")
    with Passes() as found:
        loss(logits, labels, epoch=1, epochs=2).backward()
    return found


@pytest.mark.parametrize(("name", "params", "launches", "tensors"), LIMITS, ids=lambda x: str(x))
def test_launches_and_memory_of_a_loss(name: str, params: dict[str, Any], launches: int, tensors: int) -> None:
    large = passes(name, params, 1024, 10_000)
    assert len(large.launched) <= launches, large.launched
    assert large.moved / (4 * 1024 * 10_000) <= tensors
    assert len(passes(name, params, 64, 80).launched) <= launches


@pytest.mark.parametrize("params", [{}, RATE], ids=["one", "rate"])
def test_launches_of_the_selection_loss_do_not_grow_with_the_rows(params: dict[str, Any]) -> None:
    few, many = (len(passes("selection", params, rows, 80).launched) for rows in (64, 50_000))
    assert few == many


@pytest.mark.parametrize("several", [False, True])
def test_memory_of_the_selection_loss_does_not_grow_with_the_nodes(
    several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(200, 4_000, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.zeros(logits.shape, dtype=torch.int8)
    labels[:, : 1 + several] = 1
    largest = []
    for nodes in (8, 64):
        monkeypatch.setattr(selection_one, "_nodes", lambda *given, nodes=nodes: nodes)
        selection(logits[:1], labels[:1])  # makes the table of rules, once for all
        with Passes() as found:
            selection(logits, labels).backward()
        largest.append(found.largest)
    assert largest[0] == largest[1] <= 8 * selection_one.TOGETHER


@pytest.mark.parametrize(("variant", "launches"), [("paper", 40), ("released", 35)])
def test_launches_of_the_contrast(variant: str, launches: int) -> None:
    anchors, queue, kinds = torch.rand(6, 4, requires_grad=True), torch.rand(20, 4), torch.arange(26) % 3
    twins = torch.rand(6, 4, requires_grad=True) if variant == "paper" else None
    with Passes() as found:
        label_contrast(anchors, kinds[:6], queue, kinds[6:], variant=variant, twins=twins)
    assert len(found.launched) <= launches, found.launched


def test_softplus_keeps_its_digits() -> None:
    x = torch.linspace(-700, 700, 5601, dtype=torch.float64)
    np.testing.assert_allclose(softplus(x).numpy(), np.logaddexp(0, x.numpy()), rtol=1e-15)
    far = torch.tensor([1e4, -1e4, 41.0, 39.0])
    assert softplus(far).tolist() == [1e4, 0.0, 41.0, 39.0]
