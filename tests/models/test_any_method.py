"""Every method trains every head, in float32 and in bfloat16: losses and gradients stay finite."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pluralis.engine import fit
from pluralis.errors import RecipeError
from pluralis.methods import every_method
from pluralis.models import HEADS
from pluralis.runtime import Runtime
from pluralis.stage import Stage
from tests.methods.check_method import ACTIVE, build
from tests.toys import scenes

SMALL: dict[str, dict[str, Any]] = {"label-decoder": {"dim": 16}, "semantic-graph": {"word_dim": 8}}
LABEL_WISE = ("label-decoder",)  # those with an embedding for each label, which LAC needs
LATER = {*ACTIVE, "en", "gr", "splc"}  # what is their own begins in a second epoch or stage


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", sorted(every_method()))
def test_a_method_trains_a_head(name: str, head: str, precision: str) -> None:
    data, chosen = scenes(12), (head, SMALL.get(head, {}))
    more = {"views": "fast"} if name == "relabel" else {}
    if name == "lac" and head not in LABEL_WISE:
        with pytest.raises(RecipeError, match='set model.head = "label-decoder"'):
            build(name, data, more=more, head=chosen)
        return
    method = build(name, data, more=more, head=chosen)
    one_step_an_epoch = Stage(epochs=1 + (name in LATER), batch_size=12, optimizer="sgd", augment="none")
    history = fit(method, data, one_step_an_epoch, runtime=Runtime(precision=precision)).history
    assert all(math.isfinite(value) for epoch in history for value in epoch.values())
    slopes = {part: weight.grad for part, weight in method.named_parameters()}
    heads = {part for part in slopes if ".head." in part}
    assert heads
    assert not {part for part in heads if slopes[part] is None}, "no gradient"
    assert not {part for part, slope in slopes.items() if slope is not None and not slope.isfinite().all()}
