"""Those who make the runs: processes on this machine, or actors of a Ray cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from pluralis.bench.worker import Answer, carry_out
from pluralis.errors import RecipeError


class Worker(Protocol):
    """Makes one run after the other."""

    def perform(self, job: dict[str, Any], heard: Callable[[Answer], None]) -> Answer:
        """The last answer; those before it, about epochs, go to `heard`."""

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
        return {"outcome": "failed", "error": f"its process {how}", "kind": "ProcessDied"}

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


class RayWorker:
    """An actor of a Ray cluster, whose machines see the folder of the bench and the data under the same paths."""

    def __init__(self, ray: Any, cpus: float, gpus: float) -> None:
        self._ray, self._closed = ray, False
        kind = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_concurrency=2)(_Actor)
        self._actor = kind.remote(os.getcwd())

    def perform(self, job: dict[str, Any], heard: Callable[[Answer], None]) -> Answer:
        try:
            return dict(self._ray.get(self._actor.carry_out.remote(job)))
        except self._ray.exceptions.RayError as error:
            return {"outcome": "failed", "error": " ".join(str(error).split())[:500], "kind": "ProcessDied"}

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._actor.stop.remote()

    def wait(self) -> None:
        self._ray.kill(self._actor)


class _Actor:
    """Two threads: one for the run, one to hear that it shall stop."""

    def __init__(self, folder: str) -> None:
        os.chdir(folder)
        self._stop = threading.Event()

    def carry_out(self, job: dict[str, Any]) -> Answer:
        return carry_out(job, self._stop.is_set, lambda answer: None)

    def stop(self) -> None:
        self._stop.set()


def local_workers(jobs: int) -> list[Worker]:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    return [LocalWorker(threads) for _ in range(jobs)]


def ray_workers(address: str, jobs: int) -> list[Worker]:
    """`jobs` actors that share the cluster's processors and GPUs evenly."""
    try:
        import ray
    except ImportError:
        raise RecipeError("--ray needs the package ray: pip install 'pluralis[ray]'") from None
    ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    total = ray.cluster_resources()
    cpus = max(1, int(total.get("CPU", jobs)) // jobs)
    gpus = min(1.0, total.get("GPU", 0.0) / jobs)
    return [RayWorker(ray, cpus, gpus) for _ in range(jobs)]
