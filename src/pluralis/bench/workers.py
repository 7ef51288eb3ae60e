"""Those who make the runs: what the queue asks of them, and processes on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from pluralis.bench.worker import Answer


class Worker(Protocol):
    """Makes one run after the other."""

    def perform(self, job: dict[str, Any], heard: Callable[[Answer], None]) -> Answer:
        """The last answer; those before it, about epochs, go to `heard`. "again": the run goes back into the queue."""

    def close(self) -> None:
        """Save what is running and end; may be called from another thread, and more than once."""

    def wait(self) -> None:
        """Until it has ended."""


class LocalWorker:
    """A process of its own: what kills it ends one run, and the next run gets a new one."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._process: subprocess.Popen[str] | None = None
        self._closed = False
        self._changing = threading.Lock()

    def perform(self, job: dict[str, Any], heard: Callable[[Answer], None]) -> Answer:
        with self._changing:
            if self._closed:
                return {"outcome": "stopped"}
            process = self._alive()
            assert process.stdin is not None
            assert process.stdout is not None
        with suppress(BrokenPipeError, ValueError):  # it died between two runs, or was closed just now
            print(json.dumps(job), file=process.stdin, flush=True)
        for line in process.stdout:
            answer = json.loads(line)
            if "outcome" in answer:
                return dict(answer)
            heard(answer)
        code = process.wait()
        if self._closed:
            return {"outcome": "stopped"}
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return {"outcome": "failed", "error": f"its process {how}"}

    def close(self) -> None:
        with self._changing:
            self._closed = True
            if self._process is not None and self._process.stdin is not None:
                with suppress(BrokenPipeError):  # it is gone already
                    self._process.stdin.close()

    def wait(self) -> None:
        if self._process is not None:
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()

    def _alive(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pluralis.bench.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env={"OMP_NUM_THREADS": str(self._threads), **os.environ},
            )
        return self._process


def local_workers(jobs: int, threads: int) -> list[Worker]:
    return [LocalWorker(threads) for _ in range(jobs)]
