"""The queue of embeddings: a ring that wraps, keeps the newest and lives in the state dict."""

from __future__ import annotations

from collections import deque

import pytest
import torch

from pluralis.state import Queue


def contents(queue: Queue) -> list[tuple[float, int]]:
    """Oldest first."""
    start = int(queue.pointer)
    places = [(start + i) % len(queue) for i in range(len(queue))]
    return [(float(queue.rows[p, 0]), int(queue.classes[p])) for p in places if queue.classes[p] >= 0]


@pytest.mark.parametrize("size", [1, 4, 7])
def test_it_holds_the_newest_rows_whatever_is_pushed(size: int) -> None:
    """Against a list of bounded length: single rows, none, whole turns, wraps, and more than it holds."""
    queue, expected = Queue(size, 2), deque[tuple[float, int]](maxlen=size)
    value = 0
    for count in [1, 2, 0, size, 3, size + 2, 1, 2 * size + 1, 5, size - 1]:
        numbers = torch.arange(value, value + count)
        queue.push(numbers[:, None].expand(-1, 2), numbers % 5)
        expected.extend((float(n), int(n) % 5) for n in numbers)
        value += count
        assert contents(queue) == list(expected)
        assert 0 <= int(queue.pointer) < size


def test_all_of_it_is_in_the_state_dict() -> None:
    queue, other = Queue(3, 1), Queue(3, 1)
    queue.push(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]))
    other.load_state_dict(queue.state_dict())
    for each in (queue, other):
        each.push(torch.tensor([[3.0], [4.0]]), torch.tensor([2, 3]))
    assert contents(other) == contents(queue) == [(2.0, 1), (3.0, 2), (4.0, 3)]
    assert sorted(queue.state_dict()) == ["classes", "pointer", "rows"]


def test_what_is_pushed_carries_no_graph() -> None:
    queue = Queue(3, 1)
    queue.push(torch.ones(2, 1, requires_grad=True) * 2, torch.tensor([0, 1]))
    assert not queue.rows.requires_grad


def test_a_queue_of_none() -> None:
    queue = Queue(0, 2)
    queue.push(torch.ones(3, 2), torch.zeros(3, dtype=torch.long))
    assert len(queue) == 0
    assert queue.rows.shape == (0, 2)
