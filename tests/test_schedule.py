"""The learning rate is a function of the clock, and equals what PyTorch's schedulers give."""

from __future__ import annotations

import math

import pytest
import torch

from pluralis.method import Clock
from pluralis.schedule import lr_factor
from pluralis.stage import Stage


def factors(stage: Stage, steps: int) -> list[float]:
    return [lr_factor(stage, Clock(epoch=e, step=s), steps) for e in range(stage.epochs) for s in range(steps)]


def test_constant_is_one_everywhere() -> None:
    assert set(factors(Stage(schedule="constant", warmup=0, epochs=3), 5)) == {1.0}


def test_warmup_rises_linearly_to_the_full_rate() -> None:
    rise = factors(Stage(schedule="constant", warmup=1, epochs=2), 4)
    assert rise == pytest.approx([0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1])


def test_cosine_follows_its_formula() -> None:
    found = factors(Stage(schedule="cosine", warmup=0, epochs=4), 5)
    assert found == pytest.approx([(1 + math.cos(math.pi * k / 20)) / 2 for k in range(20)])


def test_a_schedule_may_be_longer_than_the_run() -> None:
    short = factors(Stage(schedule="cosine", warmup=0, epochs=2, schedule_epochs=4), 5)
    assert short == factors(Stage(schedule="cosine", warmup=0, epochs=4), 5)[:10]


def test_one_cycle_equals_pytorch() -> None:
    steps, epochs = 10, 5
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=steps * epochs, pct_start=0.2, cycle_momentum=False
    )
    expected = []
    for _ in range(steps * epochs):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    assert factors(Stage(schedule="one-cycle", warmup=1, epochs=epochs), steps) == pytest.approx(expected)
