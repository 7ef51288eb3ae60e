"""A run tells what its method guessed, when, and how much of it was right."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from pluralis.checkpoint import read_snapshot
from pluralis.config import Recipe
from pluralis.data.scenes import make_scenes
from pluralis.run import Hooks, train


def run(folder: Path, method: str, params: dict[str, object], **data: object) -> list[str]:
    said: list[str] = []
    values = {
        "data": {"format": "scenes", "options": {"count": 40}, "protocol": "single-positive", "size": 24, **data},
        "model": {"backbone": "tiny", "weights": ""},
        "method": {"name": method, "params": params},
        "train": {"epochs": 3, "batch_size": 8, "augment": "none"},
        "select": {"rule": "last", "fraction": 0.25},
    }
    train(Recipe.from_dict(values), folder, Hooks(say=said.append))
    return said


def test_pseudo_labels_against_the_hidden_truth(tmp_path: Path) -> None:
    said = run(tmp_path, "em-apl", {"warmup": 1, "theta": 0.5})
    found = read_snapshot(tmp_path / "guesses")
    since = found.tensors["absent.since"]
    truth = make_scenes("train", 40).truth
    names = [int(row) for row in found.meta["rows"]]
    right = torch.from_numpy(truth[names] < 0)[since > 0].double().mean()
    table = found.meta["guesses by epoch"]["absent"]
    assert [row["epoch"] for row in table] == [2, 3]
    assert sum(row["assigned"] for row in table) == int((since > 0).sum()) > 100
    assert table[-1]["accuracy"] == float(right)
    assert any(f"{float(right):.1%}" in line for line in said)


def test_corrected_labels_against_the_hidden_truth(tmp_path: Path) -> None:
    said = run(tmp_path, "ll-cp", {"delta": 0.01})
    assert any("guessed to be present" in line and "rightly" in line for line in said)
    table = read_snapshot(tmp_path / "guesses").meta["guesses by epoch"]["present"]
    assert all(row["known"] == row["assigned"] > 0 for row in table)


def test_without_the_truth_only_the_number_is_told(tmp_path: Path) -> None:
    """Labels that are given as they are: nobody knows what the others would be."""
    scenes = make_scenes("train", 24)
    lines = ["image,label"]
    for row, (pixels, truth) in enumerate(zip(scenes.images, scenes.truth, strict=True)):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / f"{row:02d}.png")
        lines.append(f"{row:02d}.png,{(truth > 0).argmax()}")
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    files = {"format": "csv", "images": str(tmp_path), "labels": str(tmp_path / "labels.csv")}
    said = run(tmp_path / "run", "ll-cp", {"delta": 0.01}, **files, protocol="as-given", options={})
    assert any("guessed to be present" in line and "rightly" not in line for line in said)
    table = read_snapshot(tmp_path / "run" / "guesses").meta["guesses by epoch"]["present"]
    assert all(row["assigned"] > 0 and row["known"] == 0 and row["accuracy"] is None for row in table)


def test_methods_without_guesses_write_none(tmp_path: Path) -> None:
    run(tmp_path, "an", {})
    assert not list(tmp_path.glob("guesses*"))
