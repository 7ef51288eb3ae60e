"""Those who make the runs: processes on this machine, or actors of a Ray cluster."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
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


class RayWorker:
    """An actor of a Ray cluster, whose machines see the folder of the bench and the data under the same paths."""

    def __init__(self, ray: Any, cpus: float, gpus: float) -> None:
        self._ray, self._closed = ray, False
        kind = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_concurrency=2)(_Actor)
        self._actor = kind.remote(os.getcwd())

    def ready(self) -> Any:
        """What Ray gives when the actor has found its place."""
        return self._actor.ready.remote()

    def perform(self, job: dict[str, Any], heard: Callable[[Answer], None]) -> Answer:
        try:
            return dict(self._ray.get(self._actor.carry_out.remote(job)))
        except self._ray.exceptions.RayError as error:
            return {"outcome": "failed", "error": " ".join(str(error).split())[:500]}

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

    def ready(self) -> None:
        pass

    def carry_out(self, job: dict[str, Any]) -> Answer:
        return carry_out(job, self._stop.is_set, lambda answer: None)

    def stop(self) -> None:
        self._stop.set()


def local_workers(jobs: int) -> list[Worker]:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    return [LocalWorker(threads) for _ in range(jobs)]


def ray_workers(address: str, jobs: int, patience: float = 180.0) -> list[Worker]:
    """`jobs` actors that share the cluster's processors and GPUs; an error if they do not start in time."""
    try:
        import ray
    except ImportError:
        raise RecipeError("--ray needs the package ray: pip install 'pluralis[ray]'") from None
    ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    cpus, gpus = ray_share([node["Resources"] for node in ray.nodes() if node["Alive"]], jobs)
    workers = [RayWorker(ray, cpus, gpus) for _ in range(jobs)]
    started, _ = ray.wait([worker.ready() for worker in workers], num_returns=jobs, timeout=patience)
    if len(started) < jobs:
        for worker in workers:
            worker.wait()
        raise RecipeError(
            f"{jobs - len(started)} of {jobs} workers did not start within {patience:.0f} s: each asks the Ray cluster"
            f" for {cpus:g} processors and {gpus:g} GPUs; wait until it is less busy, or ask for fewer with --jobs"
        )
    return list(workers)


def ray_share(nodes: Sequence[Mapping[str, float]], jobs: int) -> tuple[float, float]:
    """Processors and GPUs of each of `jobs` actors, so that all of them find room on the machines of a cluster.

    An actor lies on one machine and on one GPU: so many share each GPU, and each asks for so few processors, down to a
    part of one, as it takes.

    >>> ray_share([{"CPU": 16, "GPU": 2}, {"CPU": 8, "GPU": 1}], jobs=4)
    (5, 0.5)
    """
    gpus = sum(node.get("GPU", 0) for node in nodes)
    useful = [node for node in nodes if node.get("CPU", 0) >= 1 and (not gpus or node.get("GPU", 0) >= 1)]
    if not useful:
        raise RecipeError("the Ray cluster has no machine with a free processor: start it with some, then run again")
    each = math.ceil(jobs / gpus) if gpus else jobs  # on one GPU, or on one machine

    def room(cpus: float) -> int:
        slots = [int(node.get("GPU", 1) if gpus else 1) * each for node in useful]
        return sum(min(int(node["CPU"] / cpus + 1e-9), most) for node, most in zip(useful, slots, strict=True))

    smallest = int(min(node["CPU"] for node in useful))
    shares = (*range(smallest, 0, -1), *(1 / parts for parts in range(2, jobs + 1)))
    return next(cpus for cpus in shares if room(cpus) >= jobs), 1 / each if gpus else 0
