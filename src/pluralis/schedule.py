"""The learning rate as a function of the clock: there is no scheduler, so there is no scheduler state."""

from __future__ import annotations

import math

from pluralis.method import Clock
from pluralis.stage import Stage

# The one-cycle policy starts at 1/25 of the peak and ends at 1/10,000 of where it started.
_ONE_CYCLE_START = 1 / 25
_ONE_CYCLE_END = _ONE_CYCLE_START / 1e4


def lr_factor(stage: Stage, clock: Clock, steps: int) -> float:
    """What the learning rates are multiplied by at this step of an epoch with `steps` steps."""
    position = clock.epoch * steps + clock.step
    total = (stage.schedule_epochs or stage.epochs) * steps
    rise = round(stage.warmup * steps)
    if stage.schedule == "one-cycle":
        # Peak and end fall on whole steps: the first step is at the start, the last one at the end.
        peak = max(rise - 1, 0)
        if position <= peak:
            return _cosine(_ONE_CYCLE_START, 1.0, position / peak) if peak else 1.0
        return _cosine(1.0, _ONE_CYCLE_END, min(1.0, (position - peak) / max(total - 1 - peak, 1)))
    if position < rise:
        return (position + 1) / (rise + 1)
    if stage.schedule == "cosine":
        return _cosine(1.0, 0.0, min(1.0, (position - rise) / max(total - rise, 1)))
    return 1.0


def _cosine(start: float, end: float, progress: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2
