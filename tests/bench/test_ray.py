"""A bench on a real local Ray cluster; these tests need the package ray and are skipped without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pluralis
from pluralis.bench import identity
from pluralis.bench.perform import Job
from pluralis.bench.ray_cluster import RayWorker, _Actor, _Together, ray_share, ray_workers
from pluralis.bench.runner import Queue, State, work_off
from pluralis.bench.worker import Answer
from pluralis.errors import RecipeError
from tests.bench.benches import InThisProcess, make_queue, run_bench, texts, write_spec

ROWS = '[[rows]]\nname = "an"\nmethod = "an"\n[[rows]]\nname = "gr"\nmethod = "gr"\n'
TWO = f"seeds = 1\n[settings]\ntrain.epochs = 40\nrun.save_seconds = 0\n{ROWS}"  # seconds a run: time to kill it
ONE_BAD = f"seeds = 2\n{ROWS}" + (
    '[[rows]]\nname = "bad"\nmethod = "an"\nsettings = {select.fraction = 0.001}\nseeds = 1\n'
)
MEMORY = 100_000_000  # of the object store, which a bench hardly uses


@pytest.fixture(scope="module")
def own_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Ray with a token of its own, so that it neither makes one in somebody's home nor meets another cluster."""
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text(uuid.uuid4().hex)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")  # read when ray is imported
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        yield pytest.importorskip("ray", reason="ray is not installed: pip install 'pluralis[ray]'")


@pytest.fixture
def cluster(own_ray: Any) -> Iterator[Any]:
    own_ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=MEMORY)
    yield own_ray
    own_ray.shutdown()


def work(queue: Queue, jobs: int, tick: Callable[[State], None] = lambda state: None) -> None:
    work_off(queue, ray_workers("auto", jobs, queue.store.out), tick, threading.Event())


def processes(queue: Queue, key: str) -> list[int]:
    """Those that worked at a run, from its log."""
    log = queue.store.log(key)
    lines = log.read_text().splitlines() if log.exists() else []
    return [int(line.split(", process ")[1]) for line in lines if ", process " in line]


def figures(queue: Queue) -> dict[str, dict[str, float]]:
    return {key: found.test for key, found in queue.finished.items()}


def has_saved(queue: Queue, key: str) -> bool:
    return bool(list(queue.store.folder(key).glob("checkpoints/*.json")))


@pytest.mark.slow
def test_two_workers_of_a_cluster_make_the_same_table(cluster: Any, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, ONE_BAD)
    queue = make_queue(spec, tmp_path / "out")
    work(queue, 2)
    assert [(failure.run.row, "too few" in failure.error) for failure in queue.failures.values()] == [("bad", True)]
    assert queue.made == 4
    assert len({number for run in queue.runs() for number in processes(queue, run.key)}) == 2  # both did something
    here = run_bench(spec, tmp_path / "here", output=False)
    assert figures(queue) == figures(here)


@pytest.mark.slow
def test_a_run_whose_worker_is_killed_goes_on_in_another(cluster: Any, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, TWO)
    queue, killed = make_queue(spec, tmp_path / "out"), list[str]()

    def kill_once(state: State) -> None:
        for key in [one.run.key for one in state.running if not killed and has_saved(queue, one.run.key)][:1]:
            os.kill(processes(queue, key)[-1], signal.SIGKILL)
            killed.append(key)

    work(queue, 2, kill_once)
    assert (queue.made, queue.failures) == (2, {})
    first, second = processes(queue, killed[0])
    assert first != second
    assert figures(queue) == figures(run_bench(spec, tmp_path / "here", output=False))


@pytest.mark.slow
def test_a_run_that_loses_its_worker_twice_has_failed(cluster: Any, tmp_path: Path) -> None:
    queue = make_queue(write_spec(tmp_path, TWO), tmp_path / "out")
    unlucky, killed = queue.runs()[0].key, set[int]()

    def kill_always(state: State) -> None:
        for number in set(processes(queue, unlucky)) - killed:
            os.kill(number, signal.SIGKILL)
            killed.add(number)

    work(queue, 1, kill_always)
    assert len(killed) == 2
    assert {key: failure.error for key, failure in queue.failures.items()} == {
        unlucky: "its worker was lost twice: killed, out of memory or out of reach"
    }
    assert queue.made == 1


@pytest.mark.slow
def test_a_machine_that_is_lost_leaves_its_run_to_the_others(own_ray: Any, tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    machines = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": MEMORY})
    try:
        second = machines.add_node(num_cpus=1, object_store_memory=MEMORY)
        own_ray.init(address=machines.address, log_to_driver=False)
        queue, lost = make_queue(write_spec(tmp_path, TWO), tmp_path / "out"), list[str]()

        def lose_it(state: State) -> None:
            if not lost and all(has_saved(queue, run.key) for run in queue.runs()):
                machines.remove_node(second, allow_graceful=False)
                lost.append("second")

        work(queue, 2, lose_it)
        assert lost
        assert (queue.made, queue.failures) == (2, {})
        assert sorted(len(processes(queue, run.key)) for run in queue.runs()) == [1, 2]
    finally:
        own_ray.shutdown()
        machines.shutdown()


@pytest.mark.slow
def test_sigterm_saves_and_the_same_command_goes_on(cluster: Any, tmp_path: Path) -> None:
    spec, out = write_spec(tmp_path, TWO), tmp_path / "out"
    address = cluster.get_runtime_context().gcs_address
    words = [sys.executable, "-m", "pluralis", "bench", spec, "--out", out, "--jobs", "2", "--ray", address]
    queue = make_queue(spec, out)
    bench = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while bench.poll() is None and not all(has_saved(queue, run.key) for run in queue.runs()):
        time.sleep(0.02)
    before = {run.key: sorted(queue.store.folder(run.key).glob("checkpoints/*")) for run in queue.runs()}
    bench.send_signal(signal.SIGTERM)
    said, _ = bench.communicate(timeout=60)
    assert "run the same command to go on" in said, said
    for key, files in before.items():
        assert sorted(queue.store.folder(key).glob("checkpoints/*")) != files  # saved where it was
    again = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert again.returncode == 0, again.stderr
    run_bench(spec, tmp_path / "here")
    assert texts(out) == texts(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 5])
def test_any_number_of_workers_finds_room(cluster: Any, tmp_path: Path, jobs: int) -> None:
    workers = ray_workers("auto", jobs, tmp_path)
    assert len(workers) == jobs
    for worker in workers:
        worker.close()
        worker.wait()


@pytest.mark.slow
def test_workers_that_cannot_work_are_refused(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match=r"machine \S+ of the Ray cluster does not see the folder .*nowhere.*--out"):
        ray_workers("auto", 1, tmp_path / "nowhere")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getcwd", lambda: str(tmp_path / "gone"))
        with pytest.raises(RecipeError, match=r"cannot start.*No such file.*must see the folder .*gone"):
            ray_workers("auto", 2, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(pluralis, "__version__", "9.9")
        with pytest.raises(RecipeError, match=r"has Pluralis 0\S+, and this one 9.9: install the same version"):
            ray_workers("auto", 1, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(identity, "code_hash", lambda: "other")
        with pytest.raises(RecipeError, match=r"machine \S+ of the Ray cluster has other code of Pluralis"):
            ray_workers("auto", 1, tmp_path)
    busy = cluster.remote(num_cpus=1)(_Busy).remote()
    cluster.get(busy.answer.remote())
    with pytest.raises(RecipeError, match="1 of 2 workers did not start within 4 s: each asks .* for 1 processors"):
        ray_workers("auto", 2, tmp_path, patience=4.0)
    cluster.kill(busy)
    (worker,) = ray_workers("auto", 1, tmp_path)  # those that were given up hold no processors
    worker.wait()


class _Busy:
    def answer(self) -> None:
        pass


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_said_in_one_line(own_ray: Any, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, TWO)
    words = [sys.executable, "-m", "pluralis", "bench", spec, "--out", tmp_path / "out", "--ray", "nowhere"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert "error: cannot connect to a Ray cluster at 'nowhere': " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_worker_without_a_place_holds_nothing_up(tmp_path: Path) -> None:
    class Nowhere(InThisProcess):
        def perform(self, job: dict[str, Any], heard: Callable[[Answer], None]) -> Answer:
            return {"outcome": "again"}

    queue = make_queue(write_spec(tmp_path, f"seeds = 1\n{ROWS}"), tmp_path / "out")
    work_off(queue, [Nowhere(), InThisProcess()], lambda state: None, threading.Event())
    assert (queue.made, queue.failures) == (2, {})


@pytest.mark.parametrize(
    ("nodes", "jobs", "share"),
    [
        ([(4, 0), (16, 0)], 1, (4, 0)),  # an actor lies on one machine
        ([(2, 0)], 5, (1 / 3, 0)),
        ([(8, 0), (8, 0)], 3, (4, 0)),
        ([(8, 3)], 4, (2, 0.5)),  # 3/4 of a GPU each would leave a quarter of three
        ([(64, 0), (8, 2)], 2, (4, 1)),  # only one of them has GPUs
        ([(0, 0), (4, 1)], 8, (0.5, 0.125)),
        ([(4, 4), (4, 4)], 2, (4, 1)),
    ],
)
def test_all_workers_fit_on_the_machines(
    nodes: list[tuple[float, float]], jobs: int, share: tuple[float, float]
) -> None:
    found = ray_share([{"CPU": cpus, "GPU": gpus} if gpus else {"CPU": cpus} for cpus, gpus in nodes], jobs)
    assert found == pytest.approx(share)
    cpus, gpus = found
    room = [
        min(int(c / cpus + 1e-9), int(g) * int(1 / gpus + 1e-9) if gpus else jobs) for c, g in nodes if g or not gpus
    ]
    assert sum(room) >= jobs


def test_a_cluster_without_processors_is_refused() -> None:
    with pytest.raises(RecipeError, match="no machine with a free processor"):
        ray_share([{"GPU": 1}], 1)


def test_workers_that_find_no_room_are_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in for a cluster that is busy: one of three actors starts."""
    killed: list[Any] = []
    actor = SimpleNamespace(place=SimpleNamespace(remote=lambda out: object()))
    busy = SimpleNamespace(
        init=lambda **options: None,
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {}}],
        remote=lambda **options: lambda kind: SimpleNamespace(remote=lambda folder: actor),
        wait=lambda refs, num_returns, timeout: (refs[:1], refs[1:]),
        kill=killed.append,
    )
    monkeypatch.setitem(sys.modules, "ray", busy)
    with pytest.raises(RecipeError, match=r"2 of 3 workers did not start within 1 s: each asks .* for 1 processors"):
        ray_workers("auto", 3, tmp_path, patience=1.0)
    assert killed == [actor] * 3


def test_an_actor_makes_one_run_at_a_time(tmp_path: Path) -> None:
    queue = make_queue(write_spec(tmp_path, f"seeds = 1\n[settings]\ntrain.epochs = 1000\n{ROWS}"), tmp_path / "out")
    first, second = (Job(queue.store.out, run).to_dict() for run in queue.runs())
    actor, answers = _Actor(os.getcwd()), list[Answer]()
    thread = threading.Thread(target=lambda: answers.append(actor.carry_out(first)))
    thread.start()
    while thread.is_alive() and not queue.store.is_running(first["run"]["key"]):
        time.sleep(0.01)
    assert actor.carry_out(second) == {"outcome": "again"}
    assert not queue.store.log(second["run"]["key"]).exists()
    actor.stop()
    thread.join(60)
    assert answers == [{"outcome": "stopped"}]
    assert actor.carry_out(second) == {"outcome": "stopped"}  # it has time again


def stand_in(place: dict[str, Any], there: bool = True) -> Any:
    """A cluster that answers at once, or has no room."""
    actor = SimpleNamespace(
        place=SimpleNamespace(remote=lambda out: place),
        carry_out=SimpleNamespace(remote=lambda job: {"outcome": "done"}),
    )
    cluster = SimpleNamespace(
        remote=lambda **options: lambda kind: SimpleNamespace(remote=lambda folder: actor),
        wait=lambda refs, timeout: (refs, []) if cluster.there else ([], refs),
        get=lambda ref: ref,
        exceptions=SimpleNamespace(RayActorError=_Lost, RayError=_Lost, ActorUnavailableError=_Lost),
        there=there,
    )
    return cluster


class _Lost(Exception):
    pass


def test_a_machine_with_other_code_is_refused() -> None:
    place = {"machine": "far", "version": pluralis.__version__, "code": identity.code_hash(), "sees": True}
    said: list[str] = []
    assert RayWorker(stand_in(place), "out", 1, 0, _Together(said.append)).is_there()
    worker = RayWorker(stand_in({**place, "code": "other"}), "out", 1, 0, _Together(said.append))
    with pytest.raises(RecipeError, match="the machine far of the Ray cluster has other code of Pluralis .*: install"):
        worker.is_there()


def test_why_a_bench_waits_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [0.0], list[str]()
    monkeypatch.setattr("pluralis.bench.ray_cluster.time", SimpleNamespace(monotonic=lambda: now[0]))
    together = _Together(said.append)
    place = _Actor(os.getcwd()).place(os.getcwd())
    cluster = stand_in(place, there=False)
    worker, job = RayWorker(cluster, "out", 2, 0.5, together), {"run": {"key": "k"}}

    def ask() -> tuple[str, int]:
        return worker.perform(job, lambda answer: None)["outcome"], len(said)

    assert ask() == ("again", 0)
    now[0] = 61.0
    with together.at_work():
        assert ask() == ("again", 0)  # one of the others has a place
    now[0] = 100.0
    assert ask() == ("again", 0)
    now[0] = 122.0
    assert ask() == ask() == ("again", 1)
    assert said[0].startswith(
        "the bench waits: for 61 s the Ray cluster has had no place for any worker, which needs 2"
    )
    cluster.there = True
    assert ask() == ("done", 1)
    cluster.there, now[0] = False, 200.0
    assert ask() == ("again", 2)  # a second time


def test_without_ray_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RecipeError, match=r"--ray needs the package ray: pip install 'pluralis\[ray\]'"):
        ray_workers("auto", 2, tmp_path)
