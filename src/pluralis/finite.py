"""Stop at the first loss that is not a number, and say which rows it came from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pluralis.data.loader import Loader
from pluralis.errors import NonFiniteLoss
from pluralis.method import Batch, Clock, Method

_NAMED = 8


@dataclass(frozen=True)
class _Pending:
    names: list[str]
    values: Tensor  # on the CPU; valid once `ready` has passed
    ready: torch.cuda.Event | None
    batch: Batch
    clock: Clock
    data: Loader
    method: Method


class FiniteCheck:
    """Looks at every step's loss terms.

    On a GPU it looks at a step's terms while the next step runs, so that the GPU never waits; it is
    asked to `flush` before anything is saved, so nothing that follows from a NaN reaches the disk.
    """

    def __init__(self) -> None:
        self._pending: _Pending | None = None

    def submit(self, terms: dict[str, Tensor], batch: Batch, clock: Clock, data: Loader, method: Method) -> None:
        values = torch.stack([t.detach().float() for t in terms.values()])
        if values.device.type == "cuda":
            host = torch.empty(values.shape, pin_memory=True)
            host.copy_(values, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self.flush()
            self._pending = _Pending(list(terms), host, event, batch, clock, data, method)
        else:
            self._pending = _Pending(list(terms), values, None, batch, clock, data, method)
            self.flush()

    def flush(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        if pending.ready is not None:
            pending.ready.synchronize()
        if not bool(torch.isfinite(pending.values).all()):
            raise _error(pending)


@torch.no_grad()
def _error(pending: _Pending) -> NonFiniteLoss:
    clock, batch = pending.clock, pending.batch
    values = dict(zip(pending.names, pending.values.tolist(), strict=True))
    bad = ", ".join(f"{k} = {v}" for k, v in values.items() if not torch.isfinite(torch.tensor(v)))
    broken = ~torch.isfinite(pending.method.predict(batch.views[0]).float()).all(1)
    some = bool(broken.any()) and not bool(broken.all())
    rows = batch.index[broken] if some else batch.index
    names = [pending.data.images.name(row) for row in rows[:_NAMED].tolist()]
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    what = "the rows with non-finite logits are" if some else "the batch was"
    return NonFiniteLoss(
        f"{bad} at stage {clock.stage + 1}, epoch {clock.epoch + 1}, step {clock.step + 1}: {what}"
        f" {', '.join(names)}{more}; nothing after the last checkpoint was saved: look at these images,"
        " lower train.lr or set train.clip, then run again in a new folder"
    )
