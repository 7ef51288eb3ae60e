"""kill -9 at random moments, in the middle of a save too: the end is the same to the last bit."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pluralis.checkpoint import read_snapshot, state_hash
from pluralis.data.scenes import make_scenes
from pluralis.methods import every_method
from tests.children import exit_code, start_child
from tests.faults.attempts import attempt
from tests.methods.check_method import ACTIVE, HEADS

METHODS = ["an", "gr", "em-apl", "cls", "lac", "pu-mlc"]  # a plain loss and the five systems; the others when slow
FIRST = ("cls", "lac")  # two networks; two stages, a queue and averaged weights: what the others keep is less
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
    head, params = HEADS.get(method, ("linear", {}))
    return {
        "data": {"images": str(photos), "labels": str(photos / "labels.csv"), "size": 24, "store_size": 32},
        "model": {"backbone": "tiny", "weights": "", "dropout": 0.1, "head": head, "head_params": params},
        "method": {"name": method, "params": ACTIVE.get(method, {})},
        "train": {"epochs": 3, "batch_size": 8, "ema": 0.9, "lr": 1e-3, "clip": 1.0},
        "select": {"rule": "observed", "fraction": 0.25},
        "run": {"device": "cpu", "workers": 0, "cache": "none", "save_seconds": 0.0, **run},
    }


def run_child(*args: Any) -> int:
    return exit_code(start_child(attempt, *args), timeout=120)


def final_state(folder: Path) -> tuple[str, Any]:
    snapshot = read_snapshot(folder / "model")
    return state_hash(snapshot.tensors), (snapshot.meta["history"], snapshot.meta["chosen"])


def kill_and_compare(tmp_path: Path, photos: Path, method: str, points: int, seed: int) -> None:
    """Kill runs `points` times in all, some of these while a checkpoint is written; each ends like a whole one."""
    assert run_child(recipe(photos, method), str(tmp_path / "whole")) == 0
    expected = final_state(tmp_path / "whole")
    chance = random.Random(f"{method}{seed}")
    kills, folder = 0, tmp_path / "run"
    while kills < points:
        # A save at every step shows the save itself; one at the end of a stage shows the repetition.
        saving = kills % 2 == 1
        event = chance.choice(["step", "fsync", "replace"]) if saving else "step"
        most = {"step": 3, "fsync": 12, "replace": 6}[event]  # a save syncs four times and renames twice
        often = recipe(photos, method, save_seconds=0.0 if saving else 1e9)
        ended = run_child(often, str(folder), event, chance.randint(1, most))
        if ended == 0:  # it came to its end before the moment: compare, and kill another run
            assert final_state(folder) == expected
            folder = folder.with_name(f"{folder.name}x")
        else:
            assert ended == -signal.SIGKILL
            kills += 1
    assert run_child(recipe(photos, method), str(folder)) == 0
    assert final_state(folder) == expected


@pytest.mark.parametrize("method", [m if m in FIRST else pytest.param(m, marks=pytest.mark.slow) for m in METHODS])
def test_killed_runs_end_like_uninterrupted_ones(tmp_path: Path, photos: Path, method: str) -> None:
    kill_and_compare(tmp_path, photos, method, POINTS, seed=0)


@pytest.mark.parametrize("time", [1, 2])
def test_killed_while_labels_are_guessed(tmp_path: Path, photos: Path, time: int) -> None:
    """em-apl predicts the training set before its second and its third epoch."""
    often = recipe(photos, "em-apl")
    assert run_child(often, str(tmp_path / "whole")) == 0
    assert run_child(often, str(tmp_path / "cut"), "labelling", time) == -signal.SIGKILL
    assert run_child(often, str(tmp_path / "cut")) == 0
    assert final_state(tmp_path / "cut") == final_state(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(set(every_method()) - set(METHODS)))
def test_every_other_method_too(tmp_path: Path, photos: Path, method: str) -> None:
    kill_and_compare(tmp_path, photos, method, POINTS, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("method", METHODS)
def test_killed_fifty_times(tmp_path: Path, photos: Path, method: str, seed: int) -> None:
    kill_and_compare(tmp_path, photos, method, POINTS, seed)


# The loader is the same for every method; one takes a single view of a picture, the other two.
@pytest.mark.parametrize("method", ["an", "lac", *(pytest.param(m, marks=pytest.mark.slow) for m in METHODS[1:4])])
def test_two_workers_give_the_same_hash(tmp_path: Path, photos: Path, method: str) -> None:
    for workers in (0, 2):
        values = recipe(photos, method, save_seconds=1e9, workers=workers)
        assert run_child(values, str(tmp_path / str(workers))) == 0
    assert final_state(tmp_path / "2") == final_state(tmp_path / "0")


@pytest.mark.parametrize(("cache", "workers"), [("ram", 2), ("device", 0)])
def test_caches_give_the_same_hash(tmp_path: Path, photos: Path, cache: str, workers: int) -> None:
    assert run_child(recipe(photos, "an", save_seconds=1e9), str(tmp_path / "plain")) == 0
    changed = recipe(photos, "an", save_seconds=1e9, cache=cache, workers=workers)
    assert run_child(changed, str(tmp_path / "changed")) == 0
    assert final_state(tmp_path / "changed") == final_state(tmp_path / "plain")
