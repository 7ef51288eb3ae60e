"""Workers that are actors of a Ray cluster: one that is lost with its machine costs no run."""

from __future__ import annotations

import logging
import math
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pluralis
from pluralis.bench import identity
from pluralis.bench.worker import Answer, carry_out
from pluralis.bench.workers import Worker
from pluralis.errors import RecipeError


@dataclass
class _Together:
    """What the workers of a bench share: which runs have lost one, and how long none of them has had a place."""

    say: Callable[[str], None]
    patience: float = 60.0  # seconds without a place, after which that is said
    lost: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._lock, self._busy, self._since, self._said = threading.Lock(), 0, time.monotonic(), False

    @contextmanager
    def at_work(self) -> Iterator[None]:
        with self._lock:
            self._busy, self._said = self._busy + 1, False
        try:
            yield
        finally:
            with self._lock:
                self._busy, self._since = self._busy - 1, time.monotonic()

    def without_place(self, needs: str) -> None:
        with self._lock:
            waited = time.monotonic() - self._since
            if not self._busy and not self._said and waited >= self.patience:
                self._said = True
                self.say(
                    f"the bench waits: for {waited:.0f} s the Ray cluster has had no place for any worker, which needs"
                    f" {needs}; it goes on as soon as there is one (`ray status` says what is taken)"
                )


class RayWorker:
    """An actor, on a machine that sees the folder of the bench and the data under the same paths as this one.

    Ray starts it anew when it is lost, as soon as there is room. Its run then goes back into the queue and on from its
    last checkpoint; a run that loses its worker a second time is likely to be the reason.
    """

    def __init__(self, ray: Any, out: str, cpus: float, gpus: float, together: _Together) -> None:
        self._ray, self._out, self._together, self._closed = ray, out, together, False
        self._needs = f"{cpus:g} processors and {gpus:g} GPUs"
        kind = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_concurrency=3)(_Actor)
        self._actor = kind.remote(os.getcwd())
        self.place = self._ask()

    def perform(self, job: dict[str, Any], heard: Callable[[Answer], None]) -> Answer:
        if not self.is_there():
            self._together.without_place(self._needs)
            return {"outcome": "again"}
        try:
            with self._together.at_work():
                return dict(self._ray.get(self._actor.carry_out.remote(job)))
        except self._ray.exceptions.RayActorError:  # or out of reach for a moment, and still at work
            key = job["run"]["key"]
            if key not in self._together.lost:
                self._together.lost.add(key)
                return {"outcome": "again"}
            return {"outcome": "failed", "error": "its worker was lost twice: killed, out of memory or out of reach"}
        except self._ray.exceptions.RayError as error:
            return {"outcome": "failed", "error": _in_short(error)}
        finally:
            self.place = self._ask()

    def is_there(self) -> bool:
        """False while Ray looks for a place for the actor; an error if there is none at which it can make runs."""
        if not self._ray.wait([self.place], timeout=1)[0]:
            return False
        try:
            found = self._ray.get(self.place)
        except self._ray.exceptions.ActorUnavailableError:  # lost since it was asked
            self.place = self._ask()
            return False
        except self._ray.exceptions.RayError as error:
            needs = f"its machines need Pluralis {pluralis.__version__}, and must see the folder {os.getcwd()}"
            raise RecipeError(f"a worker cannot start on the Ray cluster: {_in_short(error)}; {needs}") from None
        if found["version"] != pluralis.__version__:
            raise RecipeError(
                f"the machine {found['machine']} of the Ray cluster has Pluralis {found['version']}, and this one"
                f" {pluralis.__version__}: install the same version on all of them"
            )
        if found["code"] != identity.code_hash():
            raise RecipeError(
                f"the machine {found['machine']} of the Ray cluster has other code of Pluralis {pluralis.__version__}"
                " than this one: install the same on all of them, and start the bench again"
            )
        if not found["sees"]:
            raise RecipeError(
                f"the machine {found['machine']} of the Ray cluster does not see the folder {self._out}: name one with"
                " --out that all machines share under the same path"
            )
        return True

    def _ask(self) -> Any:
        """What Ray answers when the actor has found its place: where that is."""
        return self._actor.place.remote(self._out)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._actor.stop.remote()

    def wait(self) -> None:
        self._ray.kill(self._actor)


class _Actor:
    """Three threads: for the run, to hear that it shall stop, and to refuse another run meanwhile.

    One that was out of reach for a moment may be given a run while it is at work: two in one process would mix their
    random numbers and their logs.
    """

    def __init__(self, folder: str) -> None:
        os.chdir(folder)
        self._stop, self._at_work = threading.Event(), threading.Lock()

    def place(self, out: str) -> dict[str, Any]:
        known = {"machine": platform.node(), "version": pluralis.__version__, "code": identity.code_hash()}
        return {**known, "sees": os.path.isdir(out)}

    def carry_out(self, job: dict[str, Any]) -> Answer:
        if not self._at_work.acquire(blocking=False):
            return {"outcome": "again"}
        try:
            return carry_out(job, self._stop.is_set, lambda answer: None)
        finally:
            self._at_work.release()

    def stop(self) -> None:
        self._stop.set()


def ray_workers(
    address: str,
    jobs: int,
    out: str | os.PathLike[str],
    patience: float = 180.0,
    say: Callable[[str], None] = print,
) -> list[Worker]:
    """`jobs` actors that share the cluster's processors and GPUs; an error if they do not start in time.

    Ray takes SIGTERM for itself when it connects: whoever wants to hear of it has to ask for it afterwards.
    """
    try:
        import ray
    except ImportError:
        raise RecipeError("--ray needs the package ray: pip install 'pluralis[ray]'") from None
    try:
        ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, logging_level=logging.WARNING)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise RecipeError(
            f"cannot connect to a Ray cluster at {address!r}: {_in_short(error)}; start one with `ray start --head`,"
            " and if it asks for a token, set RAY_AUTH_MODE=token here too"
        ) from None
    cpus, gpus = ray_share([node["Resources"] for node in ray.nodes() if node["Alive"]], jobs)
    together = _Together(say)
    workers = [RayWorker(ray, str(out), cpus, gpus, together) for _ in range(jobs)]
    started, _ = ray.wait([worker.place for worker in workers], num_returns=jobs, timeout=patience)
    try:
        if len(started) < jobs:
            raise RecipeError(
                f"{jobs - len(started)} of {jobs} workers did not start within {patience:.0f} s: each asks the Ray"
                f" cluster for {cpus:g} processors and {gpus:g} GPUs; wait until it is less busy, or ask for fewer with"
                " --jobs"
            )
        for worker in workers:
            worker.is_there()
    except RecipeError:
        for worker in workers:
            worker.wait()
        raise
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


def _in_short(error: BaseException) -> str:
    """The last line, where Ray's errors say what happened; those before it are how Ray got there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
