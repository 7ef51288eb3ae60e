"""Memory that survives a restart. Everything here is made of persistent buffers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class EMA:
    """A moving average of a module's weights, with batch-norm statistics averaged alongside.

    After n updates the decay is min(decay, (1 + n) / (10 + n)), so that a short run does not end
    as an average of its random start. Integer buffers are copied.
    """

    def __init__(self, module: nn.Module, decay: float, skip: tuple[str, ...] = ()) -> None:
        self.decay = decay
        self.updates = 0
        every = module.state_dict(keep_vars=True)
        self._live = {k: v for k, v in every.items() if not (skip and k.startswith(skip))}
        self._shadow = {k: v.detach().clone() for k, v in self._live.items()}
        floating = [k for k, v in self._shadow.items() if v.is_floating_point()]
        self._rest = [k for k in self._shadow if k not in set(floating)]
        self._pairs = ([self._shadow[k] for k in floating], [self._live[k] for k in floating])

    @torch.no_grad()
    def update(self) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(self._pairs[0], [t.detach() for t in self._pairs[1]], 1 - decay)
        for key in self._rest:
            self._shadow[key].copy_(self._live[key])
        self.updates += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module carries the averaged weights inside this block."""
        kept = {k: v.detach().clone() for k, v in self._live.items()}
        self._write(self._shadow)
        try:
            yield
        finally:
            self._write(kept)

    def state_dict(self) -> dict[str, Tensor]:
        return {**self._shadow, "updates": torch.tensor(self.updates)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for key, value in self._shadow.items():
            value.copy_(state[key])
        self.updates = int(state["updates"])

    @torch.no_grad()
    def _write(self, values: dict[str, Tensor]) -> None:
        for key, tensor in self._live.items():
            tensor.detach().copy_(values[key])


class LabelState(nn.Module):
    """What a method guessed about unknown labels: a soft label and when it was given, 3 bytes an entry.

    `value` [N, C] float16 is the guessed probability of the label being present; `since` [N, C] uint8 is 0 where
    nothing was guessed, and otherwise the number of the epoch that it is used from, counted from 1 and up to 255.

    >>> state = LabelState(2, 3)
    >>> state.assign(torch.tensor([0]), torch.tensor([2]), torch.tensor([0.25]), epoch=4)
    >>> value, guessed = state(torch.tensor([0, 1]))
    >>> value[guessed], int(state.since[0, 2])
    (tensor([0.2500]), 5)
    """

    value: Tensor
    since: Tensor

    def __init__(self, rows: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(rows, classes, dtype=torch.float16))
        self.register_buffer("since", torch.zeros(rows, classes, dtype=torch.uint8))

    def forward(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Soft labels [B, C] float32 and where there is one [B, C] bool, of the rows `index` [B]."""
        return self.value[index].float(), self.since[index] != 0

    def assign(self, rows: Tensor, columns: Tensor, values: Tensor, epoch: int) -> None:
        """Guess entries (rows[i], columns[i]), to be used from `epoch` (counted from 0) on."""
        self.value[rows, columns] = values.to(self.value)
        self.since[rows, columns] = min(epoch + 1, 255)
