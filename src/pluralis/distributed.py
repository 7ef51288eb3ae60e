"""Several processes that train as one: thin over torch.distributed, and nothing when there is one process.

Every process holds the same state at every step: gradients are averaged by DDP, and batch-norm
statistics by `average_batch_norm`. So one process may write a checkpoint for all of them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


@contextmanager
def process_group(device: torch.device) -> Iterator[torch.device]:
    """Join the group that `torchrun` describes in the environment, if there is one."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield device
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


def wrap(method: nn.Module) -> nn.Module:
    """The method as DDP, or as it is when there is one process.

    Buffers are not broadcast: that would overwrite the label rows that other processes wrote.
    """
    if world_size() == 1:
        return method
    # Channels-last gradients are copied into plain buckets: right, and not worth a paragraph for every process.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    warnings.filterwarnings("ignore", category=FutureWarning, message=".*broadcast_buffers")
    return DistributedDataParallel(method, broadcast_buffers=False, find_unused_parameters=True)


def average_batch_norm(method: nn.Module) -> None:
    """Give every process the mean of all processes' running statistics."""
    if world_size() == 1:
        return
    buffers = [
        buffer
        for module in method.modules()
        if isinstance(module, _BatchNorm) and module.training
        for buffer in (module.running_mean, module.running_var)
        if buffer is not None
    ]
    if not buffers:
        return
    flat = torch.cat([b.flatten() for b in buffers])
    dist.all_reduce(flat)
    flat /= world_size()
    for buffer, value in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
        buffer.copy_(value.view_as(buffer))


def any_process(flags: Sequence[bool], device: torch.device) -> list[bool]:
    """Which of the flags are set in at least one process."""
    if world_size() == 1:
        return list(flags)
    values = torch.tensor(flags, dtype=torch.int32, device=device)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return [bool(value) for value in values.tolist()]


def gather_rows(rows: Tensor) -> Tensor:
    """The rows [n, ...] of all processes, one process after the other; n may differ between them."""
    if world_size() == 1:
        return rows
    count = torch.tensor([len(rows)], device=rows.device)
    counts = [torch.empty_like(count) for _ in range(world_size())]
    dist.all_gather(counts, count)
    lengths = [int(n) for n in counts]
    padded = rows.new_zeros(max(lengths), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded)
    return torch.cat([part[:n] for part, n in zip(parts, lengths, strict=True)])
