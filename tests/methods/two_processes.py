"""Train every method, in one process or in one of two, and leave its final state behind."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from pluralis import distributed
from pluralis.checkpoint import state_hash
from pluralis.engine import fit
from pluralis.methods import every_method
from pluralis.stage import Stage
from tests.methods.check_method import build
from tests.toys import scenes


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    folder.mkdir(exist_ok=True)
    with distributed.process_group(torch.device("cpu")):
        for name in sorted(every_method()):
            data = scenes(18)  # the last batch of 8 holds 2 rows, one for each process
            method = build(name, data)
            for module in method.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.0  # each process draws for its own rows
            # Plain steps: Adam hides a gradient of the wrong size, and blows up rounding where it is near zero.
            stage = Stage(epochs=2, batch_size=8, lr=1e-2, head_lr=3, optimizer="sgd", freeze_bn=True, ema=0.5)
            fit(method, data, stage, seed=3)
            state = method.state_dict()
            hashes: list[str] = [""] * distributed.world_size()
            if distributed.world_size() > 1:
                dist.all_gather_object(hashes, state_hash(state))
                assert len(set(hashes)) == 1, f"{name}: the processes hold different states"
            if distributed.rank() == 0:
                save_file({k: v.contiguous() for k, v in state.items()}, folder / f"{name}.safetensors")
