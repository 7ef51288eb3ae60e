"""kill -9 at random moments, in the middle of a save too: the end is the same to the last bit."""

from __future__ import annotations

import multiprocessing
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pluralis.checkpoint import read_snapshot, state_hash
from pluralis.data.scenes import make_scenes
from pluralis.losses import LOSSES
from tests.faults.attempts import attempt

METHODS = sorted(LOSSES)
POINTS = 10


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 pictures as files, with the labels of a careful but incomplete annotator."""
    folder = tmp_path_factory.mktemp("photos")
    scenes = make_scenes("train", 48)
    lines = ["image,label,value"]
    for row, (pixels, truth) in enumerate(zip(scenes.images, scenes.truth, strict=True)):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / f"{row:03d}.png")
        present, absent = (truth > 0).nonzero()[0][0], (truth < 0).nonzero()[0][0]
        lines += [f"{row:03d}.png,{present},1", f"{row:03d}.png,{absent},-1"]
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def recipe(photos: Path, method: str, **run: Any) -> dict[str, Any]:
    return {
        "data": {"images": str(photos), "labels": str(photos / "labels.csv"), "size": 24, "store_size": 32},
        "model": {"backbone": "tiny", "weights": "", "dropout": 0.1},
        "method": {"name": method},
        "train": {"epochs": 3, "batch_size": 8, "ema": 0.9, "lr": 1e-3, "clip": 1.0},
        "select": {"rule": "observed", "fraction": 0.25},
        "run": {"device": "cpu", "workers": 0, "cache": "none", "save_seconds": 0.0, **run},
    }


def run_child(*args: Any) -> int:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pluralis.run", "pluralis.data.scenes", "tests.faults.attempts"])
    child = context.Process(target=attempt, args=args)
    child.start()
    child.join(timeout=120)
    assert child.exitcode is not None, "the child hangs"
    return child.exitcode


def final_state(folder: Path) -> tuple[str, Any]:
    snapshot = read_snapshot(folder / "model")
    return state_hash(snapshot.tensors), (snapshot.meta["history"], snapshot.meta["chosen"])


def kill_and_compare(tmp_path: Path, photos: Path, method: str, points: int, seed: int) -> None:
    """Two runs, one of them killed `points` times, some of these while it writes a checkpoint."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run_child(recipe(photos, method), str(whole)) == 0
    chance = random.Random(f"{method}{seed}")
    for number in range(points):
        # A save at every step shows the save itself; a save at the end of an epoch shows the repetition.
        often = recipe(photos, method, save_seconds=0.0 if number % 2 else 1e9)
        event = chance.choice(["step", "fsync", "replace"] if number % 2 else ["step"])
        most = {"step": 3, "fsync": 12, "replace": 6}[event]  # a save syncs four times and renames twice
        ended = run_child(often, str(broken), event, chance.randint(1, most))
        assert ended in (0, -signal.SIGKILL)
        if ended == 0:
            assert number >= 4, "finished before it was killed often enough"
            break
    assert run_child(recipe(photos, method), str(broken)) == 0
    assert final_state(broken) == final_state(whole)


@pytest.mark.parametrize("method", METHODS)
def test_killed_runs_end_like_uninterrupted_ones(tmp_path: Path, photos: Path, method: str) -> None:
    kill_and_compare(tmp_path, photos, method, POINTS, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("method", METHODS)
def test_killed_fifty_times(tmp_path: Path, photos: Path, method: str, seed: int) -> None:
    kill_and_compare(tmp_path, photos, method, POINTS, seed)


@pytest.mark.parametrize("change", [{"workers": 2}, {"workers": 2, "cache": "ram"}, {"cache": "device"}])
def test_workers_and_caches_do_not_change_the_result(tmp_path: Path, photos: Path, change: dict[str, Any]) -> None:
    assert run_child(recipe(photos, "an", save_seconds=1e9), str(tmp_path / "plain")) == 0
    assert run_child(recipe(photos, "an", save_seconds=1e9, **change), str(tmp_path / "changed")) == 0
    assert final_state(tmp_path / "changed") == final_state(tmp_path / "plain")
