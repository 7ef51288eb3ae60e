"""Memory serves again only when nobody holds what lay there."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import SupportsIndex

import numpy as np
import pytest
import torch

from pluralis.data.reused import Reused

SHAPE = 4, 1000


def test_what_is_held_is_never_written_over() -> None:
    """By the tensor, a view of it, an array, or the graph of a gradient."""
    memory, weight = Reused(), torch.ones(SHAPE, requires_grad=True)
    held = []
    for number in range(40):
        made = memory.empty(SHAPE, dtype=torch.float32).fill_(number)
        held.append([made, made[1:, ::3], made.numpy()[2], (made * weight).sum()][number % 4])
        del made
    for number, kept in enumerate(held):
        if number % 4 == 3:
            weight.grad = None
            kept.backward()
            kept = weight.grad
        assert kept is not None
        assert np.all(np.asarray(kept) == number)


def test_memory_comes_back_from_any_thread() -> None:
    memory, places = Reused(), set()
    for _ in range(20):
        batch = [memory.empty(SHAPE, dtype=torch.float32)]
        places.add(batch[0].data_ptr())
        thread = threading.Thread(target=batch.clear)
        thread.start()
        thread.join()
    assert len(places) == 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 7)])
def test_any_shape_and_kind(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    memory = Reused()
    memory.empty((1000,), dtype=torch.uint8)
    made = memory.empty(shape, dtype=dtype)
    assert made.shape == shape
    assert made.dtype == dtype
    assert made.is_contiguous()


def test_a_block_serves_what_fits_and_nothing_larger() -> None:
    memory = Reused()
    large = memory.empty((100,), dtype=torch.float32)
    place = large.data_ptr()
    del large
    small = memory.empty((399,), dtype=torch.uint8)
    assert small.data_ptr() == place
    del small
    larger = memory.empty((101,), dtype=torch.float32).fill_(1)
    assert larger.data_ptr() != place
    assert memory.empty((100,), dtype=torch.float32).data_ptr() == place


def test_the_smallest_block_that_fits() -> None:
    """So that bytes do not take the place of floats, for which there would be none."""
    memory = Reused()
    made = [memory.empty((size,), dtype=torch.uint8) for size in (4000, 1000, 2000)]
    places = [tensor.data_ptr() for tensor in made]
    del made
    again = [memory.empty((size,), dtype=torch.uint8) for size in (900, 2000, 3000)]
    assert [tensor.data_ptr() for tensor in again] == [places[1], places[2], places[0]]


def test_what_many_held_is_not_kept_for_ever() -> None:
    memory = Reused()
    held = [memory.empty((1000,), dtype=torch.uint8) for _ in range(50)]
    held.clear()
    memory.empty((1000,), dtype=torch.uint8)
    assert 2 <= len(memory._free) < 10


class Slow(list[torch.Tensor]):
    """Lets other threads in between finding a block and taking it."""

    def pop(self, at: SupportsIndex = -1) -> torch.Tensor:
        time.sleep(0.05)
        return super().pop(at)


def test_several_threads_ask_at_once() -> None:
    memory = Reused()
    memory._free = Slow(torch.empty(size, dtype=torch.uint8) for size in (4096, 64))
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda _: memory.empty((4096,), dtype=torch.uint8), range(2)))
    assert [len(tensor) for tensor in made] == [4096, 4096]
    assert made[0].data_ptr() != made[1].data_ptr()


def test_a_tensor_has_no_more_than_it_asked_for() -> None:
    memory = Reused()
    memory.empty((4000,), dtype=torch.uint8)
    made = memory.empty((1000,), dtype=torch.uint8)
    assert made.untyped_storage().nbytes() == 1000
    with pytest.raises(RuntimeError, match="not resizable"):
        made.resize_(2000)


def test_tensors_outlive_what_made_them() -> None:
    memory = Reused()
    made = memory.empty(SHAPE, dtype=torch.float32).fill_(7)
    del memory
    others = [torch.zeros(SHAPE) for _ in range(10)]
    assert bool((made == 7).all())
    del made, others
