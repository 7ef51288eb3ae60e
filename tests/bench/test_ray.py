"""A bench on a real local Ray cluster with two workers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pluralis.bench.runner import work_off
from pluralis.bench.workers import ray_share, ray_workers
from pluralis.errors import RecipeError
from tests.bench.benches import make_queue, run_bench, write_spec

SPEC = 'seeds = 2\n[[rows]]\nname = "an"\nmethod = "an"\n[[rows]]\nname = "gr"\nmethod = "gr"\n'
SPEC += '[[rows]]\nname = "bad"\nmethod = "an"\nsettings = {method.params.nonsense = 1}\nseeds = 1\n'


@pytest.fixture
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'pluralis[ray]'")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.mark.slow
def test_two_workers_of_a_cluster_make_the_same_table(cluster: Any, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, SPEC)
    queue = make_queue(spec, tmp_path / "out")
    work_off(queue, ray_workers("auto", 2), lambda state: None, threading.Event())
    assert [failure.run.row for failure in queue.failures.values()] == ["bad"]
    assert queue.made == 4
    logs = [path.read_text() for path in (tmp_path / "out" / "logs").iterdir()]
    assert len({text.split("process ")[1].split()[0] for text in logs}) == 2  # both had something to do
    here = run_bench(spec, tmp_path / "here", output=False)
    assert {key: found.test for key, found in queue.finished.items()} == {
        key: found.test for key, found in here.finished.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 5])
def test_any_number_of_workers_finds_room(cluster: Any, jobs: int) -> None:
    workers = ray_workers("auto", jobs)
    assert len(workers) == jobs
    for worker in workers:
        worker.close()
        worker.wait()


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


def test_workers_that_find_no_room_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a cluster that is busy: one of three actors starts."""
    killed: list[Any] = []
    actor = SimpleNamespace(ready=SimpleNamespace(remote=object))
    busy = SimpleNamespace(
        init=lambda **options: None,
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {}}],
        remote=lambda **options: lambda kind: SimpleNamespace(remote=lambda folder: actor),
        wait=lambda refs, num_returns, timeout: (refs[:1], refs[1:]),
        kill=killed.append,
    )
    monkeypatch.setitem(sys.modules, "ray", busy)
    with pytest.raises(RecipeError, match=r"2 of 3 workers did not start within 1 s: each asks .* for 1 processors"):
        ray_workers("auto", 3, patience=1.0)
    assert killed == [actor] * 3


def test_without_ray_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RecipeError, match=r"--ray needs the package ray: pip install 'pluralis\[ray\]'"):
        ray_workers("auto", 2)
