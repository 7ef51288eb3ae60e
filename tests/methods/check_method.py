"""One set of checks for every method: `check_method(name)`, with settings that let every part of it act."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pluralis.checkpoint import Store, state_hash
from pluralis.data.loader import Loader
from pluralis.engine import fit
from pluralis.errors import Interrupted
from pluralis.evaluate import predict
from pluralis.labels import Labels
from pluralis.method import Method, Setup
from pluralis.methods import create_method, start_heads
from pluralis.models import create_model
from pluralis.stage import Stage
from tests.methods.descent import DESCENDS, check_descent
from tests.toys import SIZE, scenes

ROWS = 36
ACTIVE: dict[str, dict[str, Any]] = {
    "em-apl": {"warmup": 1},
    "cls": {"tau_h": 0.1, "tau_l": 0.2, "ramp": 1},
    "co-teaching": {"forget": 0.3, "ramp": 1},
    "co-teaching+": {"forget": 0.3, "ramp": 1, "warmup": 0},
    "jocor": {"forget": 0.3, "ramp": 1},
    "ll-r": {"delta": 0.05},
    "ll-ct": {"delta": 0.05},
    "ll-cp": {"delta": 0.05},
    "lac": {"queue": 24, "warmup": 1, "delta": 0.5, "dim": 8},
    "relabel": {"views": "standard"},
    "role": {"linear_epochs": 1},
}
HEADS: dict[str, tuple[str, dict[str, Any]]] = {"lac": ("label-decoder", {"dim": 16})}
PLAN = Stage(epochs=3, batch_size=8, lr=1e-3, head_lr=3, warmup=0, clip=1.0, ema=0.8, augment="flip")


def build(
    name: str,
    data: Loader,
    seed: int = 0,
    more: dict[str, Any] | None = None,
    head: tuple[str, dict[str, Any]] | None = None,
) -> Method:
    """The method as a run builds it, over a tiny network."""
    kind, params = head or HEADS.get(name, ("linear", {}))
    torch.manual_seed(seed)
    setup = Setup(lambda: create_model("tiny", 10, kind, dropout=0.1, head_params=params), 10, data.labels)
    method = create_method(name, setup, {**ACTIVE.get(name, {}), **(more or {})})
    start_heads(method, data.labels)
    return method


def check_method(name: str, folder: Path) -> None:
    _labels_that_say_little(name)
    data = scenes(ROWS)
    before = data.labels.dense().copy()
    check_descent(name, build(name, data, more=DESCENDS.get(name)), data)
    whole = build(name, data)
    expected = fit(whole, data, PLAN, seed=3)
    assert (data.labels.dense() == before).all(), "the labels of people were changed"
    assert all(torch.isfinite(v).all() for v in whole.state_dict().values() if v.is_floating_point())
    _predictions_are_a_function_of_the_state(name, whole, data)
    steps, early = data.steps(PLAN.batch_size), whole.stages(PLAN)[:-1]
    past = steps * sum(stage.epochs for stage in early)
    # In mid-epoch of the last stage; where one stage ends and the next begins, or else at the end of an epoch.
    for stop, stage in ((past + steps + 2, len(early)), (past or 2 * steps, max(len(early) - 1, 0))):
        place = folder / str(stop)
        with pytest.raises(Interrupted, match=f"stage {stage + 1},"):
            fit(build(name, data), data, PLAN, seed=3, store=Store(place), should_stop=_after(stop))
        again = build(name, data, seed=9)
        found = fit(again, data, PLAN, seed=3, store=Store(place))
        assert state_hash(again.state_dict()) == state_hash(whole.state_dict()), f"{name} resumed at step {stop}"
        assert found.history == expected.history


def _labels_that_say_little(name: str) -> None:
    """Nothing known at all, everything absent, everything present: no number is lost, whatever it is worth."""
    pictures = scenes(6).images
    for value in (0, -1, 1):
        labels = Labels.from_dense(np.full((6, 10), value))
        data = Loader(pictures, labels, size=SIZE)
        method = build(name, data)
        result = fit(method, data, Stage(epochs=2, batch_size=3, lr=1e-3, warmup=0, augment="none"))
        assert all(math.isfinite(v) for epoch in result.history for v in epoch.values()), (name, value)
        assert predict(method, data).isfinite().all()


def _after(steps: int) -> Any:
    left = [steps]

    def ask() -> bool:
        left[0] -= 1
        return left[0] <= 0

    return ask


def _predictions_are_a_function_of_the_state(name: str, method: Method, data: Loader) -> None:
    logits = predict(method, data)
    assert logits.shape == (ROWS, 10)
    assert torch.equal(predict(method, data), logits), "predict is not deterministic"
    other = build(name, data, seed=5)
    assert not torch.equal(predict(other, data), logits)
    other.load_state_dict(method.state_dict())
    assert torch.equal(predict(other, data), logits)
    assert state_hash(other.state_dict()) == state_hash(method.state_dict())
    # A finished run is read back without the training labels: the weights alone must do.
    head, params = HEADS.get(name, ("linear", {}))
    setup = Setup(lambda: create_model("tiny", 10, head, head_params=params), 10)
    bare = create_method(name, setup, ACTIVE.get(name))
    missing, unexpected = bare.load_state_dict(method.weights(), strict=False)
    assert not unexpected
    assert all(key.startswith(method.memory) for key in missing)
    assert torch.equal(predict(bare, data), logits)
    for member in method.members().values():
        assert predict(method, data, member=member).shape == logits.shape
