"""Memory that survives a restart. Everything here is made of persistent buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
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

    def _write(self, values: Mapping[str, Tensor]) -> None:
        _write(self._live, values)


_COUNT = "/count"  # no name of a weight has a slash at its front


class Mean:
    """The mean of what several stages left of a module's weights; of integers, the last ones.

    >>> net, mean = nn.Linear(1, 1, bias=False), Mean()
    >>> for weight in (1.0, 2.0):
    ...     mean.add({"weight": torch.tensor([[weight]])})
    >>> _ = nn.init.constant_(net.weight, 6.0)
    >>> with mean.applied(net):
    ...     net.weight.item()
    3.0
    >>> net.weight.item()
    6.0
    """

    def __init__(self) -> None:
        self.count = 0
        self._values: dict[str, Tensor] = {}

    def add(self, weights: Mapping[str, Tensor]) -> None:
        self._values = self._with(weights)
        self.count += 1

    @contextmanager
    def applied(self, module: nn.Module) -> Iterator[None]:
        """The module carries, inside this block, the mean of all that were added and its own weights."""
        every = module.state_dict(keep_vars=True)
        live = {key: every[key] for key in self._values}
        kept = {key: value.detach().clone() for key, value in live.items()}
        _write(live, self._with(kept))
        try:
            yield
        finally:
            _write(live, kept)

    def state_dict(self) -> dict[str, Tensor]:
        return {**self._values, _COUNT: torch.tensor(self.count)}

    def load_state_dict(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        self._values = {key: value.to(device) for key, value in state.items() if key != _COUNT}
        self.count = int(state[_COUNT])

    @torch.no_grad()
    def _with(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The mean with one more."""
        if not self.count:
            return {key: value.detach().clone() for key, value in weights.items()}
        share = 1 / (self.count + 1)
        return {
            key: mean.lerp(weights[key], share) if mean.is_floating_point() else weights[key].clone()
            for key, mean in self._values.items()
        }


@torch.no_grad()
def _write(live: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for key, tensor in live.items():
        tensor.detach().copy_(values[key])


class Queue(nn.Module):
    """The newest K vectors with their classes, the oldest of which are written over: a ring.

    `rows` [K, d] float32, `classes` [K] with −1 where nothing was written yet, and `pointer`, the place of the next
    row. Of more than K rows that are pushed at once, the last K stay. K = 0 is a queue that remembers nothing.

    >>> queue = Queue(3, 1)
    >>> for step in range(2):
    ...     queue.push(torch.tensor([[1.0], [2.0]]) + 10 * step, torch.tensor([0, 1]))
    >>> queue.rows.flatten().tolist(), queue.classes.tolist()
    ([12.0, 2.0, 11.0], [1, 1, 0])
    """

    rows: Tensor
    classes: Tensor
    pointer: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(size, dim))
        self.register_buffer("classes", torch.full((size,), -1, dtype=torch.long))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

    def __len__(self) -> int:
        return len(self.classes)

    @torch.no_grad()
    def push(self, rows: Tensor, classes: Tensor) -> None:
        """Write rows [n, d] and their classes [n]."""
        size = len(self)
        if size == 0:
            return
        rows, classes = rows[-size:], classes[-size:]
        place = (self.pointer + torch.arange(len(rows), device=self.rows.device)) % size
        self.rows[place] = rows.to(self.rows)
        self.classes[place] = classes.to(self.classes)
        self.pointer.add_(len(rows)).remainder_(size)


class Kept(nn.Module):
    """A copy of a module's state, to go back to.

    >>> net = nn.Linear(1, 1)
    >>> first = Kept(net)
    >>> _ = nn.init.zeros_(net.weight)
    >>> first.put_back(net)
    >>> bool(net.weight)
    True
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        for name, value in module.state_dict().items():
            self.register_buffer(name.replace(".", "/"), value.detach().clone())

    @torch.no_grad()
    def keep(self, module: nn.Module) -> None:
        for name, value in module.state_dict().items():
            self.get_buffer(name.replace(".", "/")).copy_(value)

    def put_back(self, module: nn.Module) -> None:
        module.load_state_dict({name: self.get_buffer(name.replace(".", "/")) for name in module.state_dict()})


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

    def assign(self, rows: Tensor, columns: Tensor | int, values: Tensor, epoch: int) -> None:
        """Guess entries (rows[i], columns[i]), to be used from `epoch` (counted from 0) on."""
        at = (rows * self.since.shape[1] + columns).to(self.since.device)
        self.value.view(-1).index_copy_(0, at, values.to(self.value))
        self.since.view(-1).index_fill_(0, at, min(epoch + 1, 255))

    def fill(self, values: Tensor, entries: Tensor, epoch: int, rows: Tensor | slice = slice(None)) -> None:
        """Guess the `entries` [N, C] bool of all rows, or of some, and nothing else of them, whatever was before."""
        self.value[rows] = values.to(self.value).masked_fill_(~entries.to(self.value.device), 0.0)
        self.since[rows] = entries.to(self.since) * min(epoch + 1, 255)

    def mark(self, index: Tensor, entries: Tensor, value: float, epoch: int) -> None:
        """Guess `value` for the `entries` [B, C] bool of the rows `index` [B], no row twice; others stay."""
        self.value[index] = self.value[index].masked_fill(entries, value)
        self.since[index] = self.since[index].masked_fill(entries, min(epoch + 1, 255))


_ENTRIES_PER_BLOCK = 2**20


def lowest_rows(
    scores: npt.NDArray[Any], taken: npt.NDArray[Any], counts: Sequence[int], highest: bool = False
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each class c its number, and rows (ascending) and scores of its `counts[c]` lowest, or highest, scores.

    scores [N, C] float and taken [N, C]: entries where `taken` is not 0 are passed over, and a class with fewer than
    `counts[c]` others gives them all. Of equal scores the earlier rows come first. Columns are turned into rows a few
    at a time and partitioned, not sorted: linear in N, little memory, and in NumPy, whose short operations do not wait
    for a team of threads.

    >>> scores, taken = np.array([[0.3], [0.1], [0.1], [0.0]]), np.array([[0], [0], [0], [1]])
    >>> [(c, rows.tolist()) for c, rows, _ in lowest_rows(scores, taken, [1])]
    [(0, [1])]
    """
    width = max(1, _ENTRIES_PER_BLOCK // max(1, len(scores)))
    for start in range(0, scores.shape[1], width):
        block = scores[:, start : start + width].T.astype(np.float32, order="C")
        blocked = np.ascontiguousarray(taken[:, start : start + width].T)
        for column, wanted in enumerate(counts[start : start + width]):
            rows = np.flatnonzero(blocked[column] == 0)
            found = block[column][rows]
            if 0 < wanted < len(rows):
                ranked = -found if highest else found
                bar = np.partition(ranked, wanted - 1)[wanted - 1]
                kept = np.flatnonzero(ranked <= bar)
                if len(kept) > wanted:
                    ties = np.flatnonzero(ranked[kept] == bar)
                    kept = np.delete(kept, ties[wanted - len(kept) :])
                rows, found = rows[kept], found[kept]
            if wanted > 0:
                yield start + column, torch.from_numpy(rows), torch.from_numpy(found)
