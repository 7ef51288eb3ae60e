"""Memory of batches that serves again when nobody holds them any more.

In a thread that works ahead the C library gives large blocks back to the kernel, however it is set up, and the kernel
clears and maps their pages for the next batch: that takes as long as half of the augmentation.
"""

from __future__ import annotations

import math
import threading
import weakref
from typing import Protocol

import torch
from torch import Tensor

_KEPT = 8  # free blocks: more than the batches under way, fewer than somebody may have held for a while


class Empty(Protocol):
    """`torch.empty`, or `Reused.empty`."""

    def __call__(self, size: tuple[int, ...], /, *, dtype: torch.dtype) -> Tensor: ...


class Reused:
    """Gives tensors on the CPU. What lay under one whose last view is gone lies under the next that fits.

    Any thread may ask for one, or let one go. They cannot be resized in place.

    >>> memory = Reused()
    >>> first = memory.empty((2, 3), dtype=torch.float32)
    >>> place = first.data_ptr()
    >>> del first
    >>> memory.empty((3, 2), dtype=torch.float32).data_ptr() == place
    True
    """

    def __init__(self) -> None:
        self._free: list[Tensor] = []  # the last to come back is the last in it
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], /, *, dtype: torch.dtype) -> Tensor:
        """Numbers that mean nothing yet, as those of `torch.empty`."""
        size = math.prod(shape) * dtype.itemsize
        block = self._take(size)
        # Every view of the tensor keeps this array, and nothing else does: its end is that of the last of them. It ends
        # where the tensor does, also in a larger block, so that nobody saves the rest or grows into it.
        array = block.numpy()[:size]
        # Not under the lock, which may be held where the garbage collector calls this; appending needs none.
        end = weakref.finalize(array, self._free.append, block)
        end.atexit = False  # there is nobody left to serve
        return torch.from_numpy(array).view(dtype).view(shape)

    def _take(self, size: int) -> Tensor:
        """The smallest free block of at least `size` bytes, or a new one."""
        with self._lock:
            fitting = (number for number, block in enumerate(self._free) if len(block) >= size)
            number = min(fitting, key=lambda number: len(self._free[number]), default=None)
            block = None if number is None else self._free.pop(number)
            del self._free[:-_KEPT]
        return torch.empty(size, dtype=torch.uint8) if block is None else block
