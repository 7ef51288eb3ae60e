"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

README = Path("README.md").read_text(encoding="utf-8")


def test_the_python_example_trains() -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    labels = torch.zeros(4, 20, dtype=torch.int8)
    labels[torch.arange(4), torch.arange(4)] = 1
    pictures = torch.randint(0, 256, (4, 3, 64, 64), generator=torch.Generator().manual_seed(0)).float()
    names: dict[str, object] = {"batches": [(pictures, labels)] * 4}
    torch.manual_seed(0)
    exec(code[1], names)  # the block is the test
    net = names["net"]
    assert isinstance(net, torch.nn.Module)
    positives = net(pictures)[torch.arange(4), torch.arange(4)]
    assert positives.mean() > net(pictures)[:, 10:].mean() + 0.5


def test_the_estimator_example_runs() -> None:
    code = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "Classifier" in block)
    draw = np.random.default_rng(0)
    features = draw.normal(size=(400, 4))
    truth = features[:, :3] > 0
    written = truth & (draw.random(truth.shape) < 0.6)
    names: dict[str, object] = {"X": features, "Y": written.astype(int)}
    exec(code, names)
    found = names["model"].predict_proba(features)  # type: ignore[attr-defined]
    assert found[truth].mean() > found[~truth].mean() + 0.2


def test_the_methods_that_are_named_are_those_that_exist() -> None:
    from pluralis.methods import every_method

    part = README[README.index("## Methods") : README.index("## Results")]
    ours = {"selection", "relabel"}
    listed = set(re.findall(r"[a-z0-9+-]+", " ".join(re.findall(r"`([^`]+)`", part.split("all described in")[0]))))
    assert listed | ours == set(every_method())
    assert all(f"`{name}`" in part for name in ours)


def test_every_command_and_link_exists() -> None:
    from pluralis.cli import app

    known = {command.callback.__name__ for command in app.registered_commands if command.callback}
    known |= {group.name for group in app.registered_groups}
    assert set(re.findall(r"^pluralis (\w+)", README, re.MULTILINE)) <= known
    for target in re.findall(r"\]\(([^)#]+)", README):
        assert Path(target).exists(), target
    makefile = Path("Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile
