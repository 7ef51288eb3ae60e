"""Whether a method that trains in two processes ends as it does in one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from pluralis import Loader, Stage, distributed, fit
from pluralis.checkpoint import state_hash
from pluralis.method import Method
from tests.children import call, call_in_two


def train_as_one_of_some(folder: Path, made: Callable[[], tuple[Method, Loader]], ema: float) -> None:
    torch.set_num_threads(1)
    folder.mkdir(exist_ok=True)
    with distributed.process_group(torch.device("cpu")):
        method, data = made()
        for module in method.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0  # each process draws for its own rows
        fit(method, data, Stage(epochs=2, batch_size=8, lr=1e-3, head_lr=3, freeze_bn=True, ema=ema), seed=3)
        state = {key: value.contiguous() for key, value in method.state_dict().items()}
        save_file(state, folder / f"{distributed.rank()}.safetensors")


def check_one_and_two(folder: Path, made: Callable[[], tuple[Method, Loader]], ema: float = 0.0) -> None:
    given: tuple[Any, ...] = (made, ema)
    train = train_as_one_of_some
    for done in (call(train, folder / "one", *given), *call_in_two(train, folder / "two", *given)):
        assert done.returncode == 0, done.stderr[-3000:]
    one = load_file(folder / "one" / "0.safetensors")
    two = [load_file(folder / "two" / f"{rank}.safetensors") for rank in (0, 1)]
    assert state_hash(two[0]) == state_hash(two[1])
    for key, value in one.items():
        torch.testing.assert_close(two[0][key], value, rtol=2e-3, atol=1e-3 if "soft" in key else 2e-5)
