"""The guide's picture of where a class was seen, from a finished run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pluralis import Recipe, load_run, train

GUIDE = Path("docs/guide.md").read_text(encoding="utf-8")


def test_where_did_it_see_the_dog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng, names = np.random.default_rng(0), ["dog", "cat"]
    for row in range(6):
        Image.fromarray(rng.integers(0, 255, (40, 50, 3), np.uint8)).save(f"{row}.png")
    Image.open("0.png").save("photo.jpg")
    Path("labels.csv").write_text("image,label\n" + "".join(f"{row}.png,{names[row % 2]}\n" for row in range(6)))
    small = ["model.backbone=tiny", "model.weights=", "data.size=32", "train.epochs=1", "select.rule=last",
             "run.device=cpu", "method.name=selection", "model.head=lse"]  # fmt: skip
    train(Recipe.load(None, small, {"data.images": ".", "data.labels": "labels.csv"}), Path("runs/mine"))
    (block,) = [
        code for code in re.findall(r"^```python\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE) if "overlay" in code
    ]
    found: dict[str, object] = {}
    exec(block, found)
    assert Image.open("dog.png").size == (32, 32)
    heat = found["heat"]
    assert heat.shape == (32, 32)  # type: ignore[attr-defined]
    assert 0 < float(heat.min()) <= float(heat.max()) < 1  # type: ignore[attr-defined]
    assert load_run(Path("runs/mine")).classes.index("dog") >= 0
