"""A bench on a real local Ray cluster with two workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pluralis.bench.runner import work_off
from pluralis.bench.workers import ray_workers
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


def test_without_ray_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(RecipeError, match=r"--ray needs the package ray: pip install 'pluralis\[ray\]'"):
        ray_workers("auto", 2)
