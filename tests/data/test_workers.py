"""Batches from other processes: the same in the same order, errors that keep their type, and nobody left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from pluralis.data.images import decode
from pluralis.data.workers import make_ahead
from pluralis.errors import DataError, RecipeError

ROOM = 4096


def roots(rows: Tensor) -> Tensor:
    """Not contiguous."""
    return torch.stack([rows.double(), rows.double().sqrt()]).T


@pytest.mark.parametrize("workers", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 5, 23])
def test_the_same_batches_in_the_same_order(workers: int, count: int) -> None:
    batches = list(torch.arange(count * 7 - 3).split(7))
    found = list(make_ahead(roots, batches, workers, ROOM))  # all are kept: none is written over
    assert len(found) == count
    for made, rows in zip(found, batches, strict=True):
        assert torch.equal(made, roots(rows))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64, torch.bool])
def test_any_kind_of_numbers(dtype: torch.dtype) -> None:
    found = list(make_ahead(lambda rows: rows.reshape(2, -1).to(dtype), list(torch.arange(40).split(8)), 2, ROOM))
    assert {made.dtype for made in found} == {dtype}
    assert torch.equal(torch.cat(found), torch.arange(40).reshape(-1, 4).to(dtype))


def test_workers_are_processes_with_one_thread_that_take_turns() -> None:
    def who(rows: Tensor) -> Tensor:
        return torch.tensor([os.getpid(), torch.get_num_threads()])

    found = [made.tolist() for made in make_ahead(who, [torch.arange(2)] * 9, 3, ROOM)]
    assert [threads for _, threads in found] == [1] * 9
    assert len({process for process, _ in found} - {os.getpid()}) == 3
    assert found[:3] == found[3:6] == found[6:]


def test_workers_do_not_search_for_garbage_in_what_the_first_process_has() -> None:
    def searched(rows: Tensor) -> Tensor:
        return torch.tensor(len(gc.get_objects()))

    before = gc.get_freeze_count()
    (ours,), (theirs,) = (make_ahead(searched, [torch.arange(1)], workers, ROOM) for workers in (0, 1))
    assert theirs < ours / 10
    assert gc.get_freeze_count() == before


@pytest.mark.parametrize("kind", [DataError, RecipeError, ZeroDivisionError])
def test_an_error_keeps_its_type_and_says_where_it_was(kind: type[Exception]) -> None:
    def bad(rows: Tensor) -> Tensor:
        if 6 in rows:
            raise kind("row 6 is bad")
        return rows

    made = make_ahead(bad, list(torch.arange(20).split(2)), 2, ROOM)
    assert [next(made).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(kind, match="^row 6 is bad") as found:
        next(made)
    assert str(found.value) == "row 6 is bad"
    if kind is ZeroDivisionError:  # which says no more than that
        assert "in bad" in found.value.__notes__[0]
    assert not multiprocessing.active_children()


def test_a_worker_that_is_killed_is_reported() -> None:
    def killed(rows: Tensor) -> Tensor:
        if 6 in rows:
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    with pytest.raises(DataError, match=r"code -9.*run\.workers"):
        list(make_ahead(killed, list(torch.arange(20).split(2)), 2, ROOM))


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="buffer"):
        list(make_ahead(lambda rows: rows.repeat(100), list(torch.arange(20).split(10)), 2, ROOM))


def test_an_epoch_that_is_left_leaves_no_process() -> None:
    made = make_ahead(roots, list(torch.arange(70).split(7)), 3, ROOM)
    next(made)
    assert len(multiprocessing.active_children()) == 3
    made.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()


def test_ctrl_c_is_left_to_the_first_process() -> None:
    made = make_ahead(roots, list(torch.arange(70).split(7)), 2, ROOM)
    next(made)
    for process in multiprocessing.active_children():
        os.kill(process.pid or 0, signal.SIGINT)
    assert len(list(made)) == 9


def test_ctrl_c_is_left_to_the_first_process_from_the_first_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    fork = os.fork

    def fork_under_ctrl_c() -> int:
        process = fork()
        if process == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return process

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    monkeypatch.setattr(os, "fork", fork_under_ctrl_c)
    assert len(list(make_ahead(roots, list(torch.arange(70).split(7)), 2, ROOM))) == 10
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask


def test_workers_end_with_the_first_process() -> None:
    script = """
import multiprocessing, os, signal, torch
from pluralis.data.workers import make_ahead
made = make_ahead(lambda rows: rows, list(torch.arange(99).split(2)), 3, 64)
next(made)
print(*[process.pid for process in multiprocessing.active_children()], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    workers = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=60, check=False).stdout
    left = [int(number) for number in workers.split()]
    assert len(left) == 3
    for _ in range(100):
        left = [number for number in left if Path(f"/proc/{number}").exists() and not _is_dead(number)]
        if not left:
            return
        time.sleep(0.05)
    raise AssertionError(f"processes {left} live on")


def _is_dead(number: int) -> bool:
    """Ended, and waiting for somebody to ask how."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_workers_keep_the_memory_of_a_picture_for_the_next(tmp_path: Path) -> None:
    """Without that the kernel maps several hundred pages anew for each."""
    pixels = np.random.default_rng(0).integers(0, 256, (375, 500, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.jpg", quality=50)

    def faults(rows: Tensor) -> Tensor:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in rows:
            decode(tmp_path / "x.jpg", 224)
        return torch.tensor(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    _, _, later = make_ahead(faults, list(torch.arange(24).split(8)), 1, ROOM)
    assert later / 8 < 50
