"""The optimizer of a stage, and its state by parameter name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pluralis.method import Clock, Method
from pluralis.schedule import lr_factor
from pluralis.stage import Stage


def create_optimizer(method: Method, stage: Stage) -> torch.optim.Optimizer:
    """One parameter group for each of the method's; the fused form, which has no cost for many tensors."""
    groups = method.param_groups(stage)
    common: dict[str, Any] = {"lr": stage.lr, "weight_decay": stage.weight_decay, "fused": True}
    if stage.optimizer == "adamw":
        return torch.optim.AdamW(groups, **common)
    if stage.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=stage.momentum, **common)
    return torch.optim.Adam(groups, **common)


def set_learning_rate(optimizer: torch.optim.Optimizer, stage: Stage, clock: Clock, steps: int) -> None:
    factor = lr_factor(stage, clock, steps)
    for group in optimizer.param_groups:
        group["lr"] = stage.lr * group["lr_factor"] * factor


def clip_groups(optimizer: torch.optim.Optimizer, most: float) -> None:
    """Each group on its own: one norm over two networks would couple them."""
    for group in optimizer.param_groups:
        torch.nn.utils.clip_grad_norm_(group["params"], most)


def optimizer_tensors(optimizer: torch.optim.Optimizer, method: Method) -> dict[str, Tensor]:
    """`<parameter>//<slot>` -> tensor."""
    names = {id(p): name for name, p in method.named_parameters()}
    return {
        f"{names[id(p)]}//{slot}": value
        for group in optimizer.param_groups
        for p in group["params"]
        for slot, value in optimizer.state.get(p, {}).items()
        if isinstance(value, Tensor)
    }


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, method: Method, tensors: dict[str, Tensor]) -> None:
    """Put `optimizer_tensors` back, in the device and memory layout of each parameter."""
    params = dict(method.named_parameters())
    for key, value in tensors.items():
        name, slot = key.rsplit("//", 1)
        param = params[name]
        like = torch.empty_like(param) if value.shape == param.shape else torch.empty_like(value, device=param.device)
        optimizer.state[param][slot] = like.detach().copy_(value)
