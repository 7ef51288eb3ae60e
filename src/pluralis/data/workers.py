"""Batches made ahead by other processes and handed over in memory that is shared from the start.

Every worker has two places of its own, which it fills in turns; what lies there is copied out once. Memory that is made
anew for each batch would cost the kernel a tenth of the time of decoding, and containers often have little of it.
"""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pluralis.errors import DataError, PluralisError
from pluralis.freed_memory import keep_smaller_blocks, return_freed_memory

_PLACES = 2  # of a worker: one is filled while the other one waits for its turn


@dataclass(frozen=True)
class _Worker:
    process: ForkProcess
    pipe: Connection
    places: list[mmap.mmap]

    def ask(self, number: int) -> None:
        """Have batch `number` made, into the place that was emptied last."""
        try:
            self.pipe.send(number)
        except OSError:
            raise self._gone() from None

    def take(self, turn: int, pin: bool) -> Tensor:
        """The oldest batch that was asked for, which is the worker's number `turn`."""
        try:
            answer = self.pipe.recv()
        except (EOFError, OSError):
            raise self._gone() from None
        if isinstance(answer, Exception):
            raise answer
        dtype, shape = answer
        return _copy_out(self.places[turn % _PLACES], dtype, shape, pin)

    def _gone(self) -> DataError:
        self.process.join()
        return DataError(
            f"a process that decodes images ended with code {self.process.exitcode} (-9: the system killed it, most"
            " often for want of memory); set run.workers lower, or to 0"
        )


def make_ahead(
    make: Callable[[Tensor], Tensor], batches: Sequence[Tensor], workers: int, room: int, pin: bool = False
) -> Iterator[Tensor]:
    """make(rows) for each batch of row numbers, in order, each with at most `room` bytes.

    With `workers`, that many forked processes with one thread each make them; an exception there is raised here, by its
    type. `pin` gives tensors that a GPU can copy while it works.

    >>> [double.tolist() for double in make_ahead(lambda rows: 2 * rows, torch.arange(6).split(2), 2, room=16)]
    [[0, 2], [4, 6], [8, 10]]
    """
    if workers == 0:
        for rows in batches:
            made = make(rows)
            yield made.pin_memory() if pin else made
        return
    with _started(make, batches, min(workers, len(batches)), room) as team:
        for number in range(min(_PLACES * len(team), len(batches))):
            team[number % len(team)].ask(number)
        for number in range(len(batches)):
            worker = team[number % len(team)]
            made = worker.take(number // len(team), pin)
            following = number + _PLACES * len(team)
            if following < len(batches):
                worker.ask(following)
            yield made


@contextmanager
def _started(
    make: Callable[[Tensor], Tensor], batches: Sequence[Tensor], count: int, room: int
) -> Iterator[list[_Worker]]:
    context, team = multiprocessing.get_context("fork"), []
    try:
        for _ in range(count):
            places = [mmap.mmap(-1, room) for _ in range(_PLACES)]
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(ours, theirs, make, batches, count, places), daemon=True)
            with _held_back(signal.SIGINT, signal.SIGTERM):
                process.start()
            theirs.close()  # so that the end of the worker is the end of the pipe
            team.append(_Worker(process, ours, places))
        yield team
    finally:
        for worker in team:
            worker.process.kill()  # it keeps nothing that could be lost
            worker.process.join()
            worker.pipe.close()


@contextmanager
def _held_back(*signals: signal.Signals) -> Iterator[None]:
    """Have these wait: a worker that has just been forked still has the handlers of the first process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(
    far_end: Connection,
    pipe: Connection,
    make: Callable[[Tensor], Tensor],
    batches: Sequence[Tensor],
    team: int,
    places: list[mmap.mmap],
) -> None:
    """Answer numbers of batches until the other end is closed."""
    far_end.close()  # it came along with the fork, and would keep the pipe open when the first process is gone
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal: the first one decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])  # held back until here
    torch.set_num_threads(1)  # the threads of the first process are not here, and the cores have a worker each
    return_freed_memory()  # what the first process keeps for itself: its pages would be copied when it writes there
    keep_smaller_blocks()
    gc.freeze()  # else whatever the first process holds is searched for garbage again and again
    answer: tuple[torch.dtype, torch.Size] | Exception
    while True:
        try:
            number = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = _copy_in(places[number // team % _PLACES], make(batches[number]))
        except Exception as error:
            if not isinstance(error, PluralisError):
                error.add_note(traceback.format_exc())  # it does not travel by itself
            answer = error
        try:
            pipe.send(answer)
        except OSError:  # nobody listens any more
            return


def _copy_in(place: mmap.mmap, tensor: Tensor) -> tuple[torch.dtype, torch.Size]:
    content = _bytes_of(tensor.contiguous())
    np.frombuffer(place, np.uint8, len(content))[:] = content
    return tensor.dtype, tensor.shape


def _copy_out(place: mmap.mmap, dtype: torch.dtype, shape: torch.Size, pin: bool) -> Tensor:
    tensor = torch.empty(shape, dtype=dtype, pin_memory=pin)
    content = _bytes_of(tensor)
    # By numpy, which copies with one thread: torch's would wait for cores that the workers have.
    content[:] = np.frombuffer(place, np.uint8, len(content))
    return tensor


def _bytes_of(tensor: Tensor) -> npt.NDArray[np.uint8]:
    return tensor.numpy().reshape(-1).view(np.uint8)
