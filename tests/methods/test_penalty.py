"""L1R and L2R: assume negative plus the size of the weights that train."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pluralis.checkpoint import state_hash
from pluralis.engine import fit
from pluralis.errors import RecipeError
from pluralis.method import Batch, Clock, Method, Setup
from pluralis.methods import create_method
from pluralis.models import create_model
from tests.toys import plan, scenes


def make(name: str, **params: float) -> Method:
    torch.manual_seed(0)
    return create_method(name, Setup(lambda: create_model("tiny", 10), 10), params)


def batch() -> Batch:
    labels = torch.zeros(2, 10, dtype=torch.int8)
    labels[0, 3], labels[1, 4], labels[1, 5] = 1, 1, -1
    return Batch((torch.arange(2 * 3 * 24 * 24).reshape(2, 3, 24, 24) % 251,), labels, torch.arange(2))


@pytest.mark.parametrize(("name", "size"), [("l1r", np.abs), ("l2r", np.square)])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_penalty_is_over_all_parameters_that_train(name: str, size: object, frozen: bool) -> None:
    method, plain = make(name, weight=0.3), make("an")
    for _, net in [*method.networks(), *plain.networks()]:
        net.freeze("all" if frozen else 0)
    terms = method(batch(), Clock())
    trained = [p for p in method.parameters() if p.requires_grad]
    expected = 0.3 * sum(size(p.detach().double().numpy()).sum() for p in trained)  # type: ignore[operator]
    assert terms["penalty"].item() == pytest.approx(expected, rel=1e-5)
    assert torch.equal(terms["an"], plain(batch(), Clock())["loss"])
    sum(terms.values()).backward()
    plain(batch(), Clock())["loss"].backward()
    slope = (lambda p: p.sign()) if name == "l1r" else (lambda p: 2 * p)
    for p, q in zip(method.parameters(), plain.parameters(), strict=True):
        if p.requires_grad:
            torch.testing.assert_close(p.grad, q.grad + 0.3 * slope(p.detach()))
        else:
            assert p.grad is None


@pytest.mark.parametrize("name", ["l1r", "l2r"])
def test_without_weight_it_is_an(name: str) -> None:
    data = scenes(16)
    method, plain = make(name, weight=0.0), make("an")
    fit(method, data, plan())
    fit(plain, data, plan())
    assert state_hash(method.weights()) == state_hash(plain.weights())
    with pytest.raises(RecipeError, match=f"{name}: weight"):
        make(name, weight=-1.0)
