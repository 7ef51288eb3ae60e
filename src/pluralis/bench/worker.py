"""A process that makes one run after the other: `python -m pluralis.bench.worker`.

It reads jobs from its input, a line of JSON each, and answers in lines of JSON. When its input ends, because it was
closed or because the process that started it is gone, it saves what it has and ends within one step.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

Answer = dict[str, Any]


def carry_out(values: dict[str, Any], stop: Callable[[], bool], tell: Callable[[Answer], None]) -> Answer:
    """One job in this process; all that it says goes to its log. Whatever goes wrong becomes the answer."""
    from pluralis.bench.perform import Job, perform
    from pluralis.bench.store import Store
    from pluralis.errors import Interrupted
    from pluralis.method import Clock
    from pluralis.run import Hooks

    job = Job.from_dict(values)

    def report(clock: Clock, steps: int, figures: dict[str, float]) -> None:
        if figures:
            print(json.dumps(figures), flush=True)
            tell({"epoch": clock.epoch, "epochs": clock.epochs, "stage": clock.stage})

    def decoding(done: int, total: int) -> None:
        if stop():
            raise Interrupted("stopped while decoding images")

    with _output_to(Store(job.out).log(job.run.key)):
        print(f"{job.run.label}, process {os.getpid()}", flush=True)
        try:
            return {"outcome": perform(job, Hooks(report, decoding, print, stop))}
        except Interrupted:
            return {"outcome": "stopped"}
        except Exception as error:  # the other runs need not care
            traceback.print_exc()
            return {"outcome": "failed", "error": " ".join(str(error).split())}
        finally:
            _free_memory()


def main() -> None:
    with suppress(BrokenPipeError), os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        _serve(answers)


def _serve(answers: TextIO) -> None:
    gone = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal: the first one decides
    signal.signal(signal.SIGTERM, lambda number, frame: gone.set())
    jobs: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def listen() -> None:
        # Not sys.stdin: processes that decode images are forked from this one, and close it first thing. While a thread
        # reads it they would wait for its lock for ever.
        with os.fdopen(os.dup(0), encoding="utf-8") as lines:
            for line in lines:
                jobs.put(line)
        gone.set()
        jobs.put(None)

    def tell(answer: Answer) -> None:
        try:
            print(json.dumps(answer), file=answers, flush=True)
        except OSError:  # nobody listens any more
            gone.set()

    threading.Thread(target=listen, daemon=True).start()
    while not gone.is_set() and (line := jobs.get()) is not None:
        tell(carry_out(json.loads(line), gone.is_set, tell))


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Both streams, those of libraries too, at the end of a file."""
    streams = (sys.stdout, sys.stderr)
    numbers = (1, 2)
    for stream in streams:
        stream.flush()
    before = [os.dup(number) for number in numbers]
    with open(log, "ab") as file:
        for number in numbers:
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for stream in streams:
            stream.flush()
        for number, old in zip(numbers, before, strict=True):
            os.dup2(old, number)
            os.close(old)


def _free_memory() -> None:
    """The next run starts with an empty GPU, and with the memory that this one kept."""
    import gc

    import torch

    from pluralis.freed_memory import return_freed_memory

    gc.collect()
    return_freed_memory()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
