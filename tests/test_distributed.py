"""Two processes under torchrun train as one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pluralis.checkpoint import read_snapshot, state_hash
from tests.children import call_in_two, command, pluralis

SETTINGS = [
    "data.format=scenes",
    "data.options.count=45",  # 34 rows to train on: the last batch of 8 holds 2 rows, one for each process
    "data.protocol=single-positive",
    "data.size=24",
    "model.backbone=tiny",
    "model.weights=",
    "train.epochs=2",
    "train.batch_size=8",
    "train.augment=crop",
    "train.freeze_bn=true",
    "train.ema=0.9",
    "select.fraction=0.25",
    "run.device=cpu",
]


def arguments(out: Path, method: str, *more: str) -> list[str]:
    words = [w for setting in [*SETTINGS, *more] for w in ("--set", setting)]
    return ["train", "--out", str(out), "--method", method, *words]


def torchrun(*words: str) -> None:
    """The real one, which takes seconds to start: other tests are content with what it tells its processes."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "pluralis"]
    start, environment = [sys.executable, *launch, *words], {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(start, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]


def two_processes(*words: str) -> None:
    for done in call_in_two(command, *words):
        assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("method", "start"), [("an", torchrun), ("gr", two_processes)])
def test_two_processes_give_the_numbers_of_one(tmp_path: Path, method: str, start: Callable[..., None]) -> None:
    assert pluralis(*arguments(tmp_path / "one", method)).returncode == 0
    start(*arguments(tmp_path / "two", method))
    one, two = read_snapshot(tmp_path / "one/model"), read_snapshot(tmp_path / "two/model")
    for name, value in one.tensors.items():
        torch.testing.assert_close(two.tensors[name], value, rtol=1e-3, atol=1e-5, msg=name)
    for a, b in zip(one.meta["history"], two.meta["history"], strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4)
        assert b["val nll"] == pytest.approx(a["val nll"], rel=1e-3)


def test_two_processes_with_batch_norm_agree_with_themselves_and_resume(tmp_path: Path) -> None:
    """Statistics are averaged at every step, so what the first process saves stands for both.

    The held-out rows are shared out, so their likelihood shows the second process's statistics too. The method has
    three loss terms, whose sums in mid-epoch differ between the processes.
    """
    more = ("train.freeze_bn=false", "run.save_seconds=0")
    two_processes(*arguments(tmp_path / "whole", "role", *more))
    folder = tmp_path / "cut"
    two_processes(*arguments(folder, "role", *more))
    # Take the end away, as a kill would: the newest checkpoint, which leaves one in mid-epoch, and the model.
    newest = max(p.stem for p in (folder / "checkpoints").glob("*.json"))
    for path in [*(folder / "checkpoints").glob(f"{newest}.*"), *folder.glob("model.*")]:
        path.unlink()
    two_processes(*arguments(folder, "role", *more))
    whole, cut = (read_snapshot(p / "model") for p in (tmp_path / "whole", folder))
    assert state_hash(cut.tensors) == state_hash(whole.tensors)
    assert cut.meta["history"] == whole.meta["history"]
