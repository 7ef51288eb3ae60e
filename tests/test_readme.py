"""What the README shows works as it stands there."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

README = Path("README.md").read_text(encoding="utf-8")


def own_loop(*changes: tuple[str, str]) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits [4, 20] of the network that the first block of code trained, before and after; row i shows class i."""
    found = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert found is not None
    code = found[1]
    for old, new in changes:
        assert old in code
        code = code.replace(old, new)
    labels = torch.zeros(4, 20, dtype=torch.int8)
    labels[torch.arange(4), torch.arange(4)] = 1
    pictures = torch.randint(0, 256, (4, 3, 64, 64), generator=torch.Generator().manual_seed(0)).float()
    names: dict[str, Any] = {"batches": [(pictures, labels)] * 4, "all_labels": labels}
    torch.manual_seed(0)
    start, loop = code.split("for epoch", 1)
    exec(start, names)  # the block is the test
    before = names["net"](pictures).detach()
    exec("for epoch" + loop, names)
    return before, names["net"](pictures).detach()


def test_the_python_example_trains() -> None:
    before, after = own_loop()
    learned = (after - before).diagonal() - (after - before)[:, 10:].mean(1)
    assert learned.mean() > 0.5


LOG_ODDS = math.log(1.5 / 3.5)


@pytest.mark.parametrize(("name", "start"), [("selection", LOG_ODDS), ("gr", 0.0), ("em", 0.0), ("nnpu", 0.0)])
def test_the_python_example_takes_the_losses_that_it_names(name: str, start: float) -> None:
    """Each with the bias that suits it: the log-odds of one written label in four rows, or zero."""
    assert f'"{name}"' in README
    small = ('"efficientnet_lite0", num_classes=20, weights="imagenet"', '"tiny", num_classes=20')
    silent = "net.head.fc.weight.data.zero_()\noptimizer ="  # so that the logits are the bias
    before, after = own_loop(('create_loss("selection")', f'create_loss("{name}")'), small, ("optimizer =", silent))
    assert before[:, :4].flatten().tolist() == pytest.approx([start] * 16)
    assert not torch.equal(before, after)


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
