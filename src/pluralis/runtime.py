"""Where and how exactly numbers are computed: device, precision, memory layout, compilation."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import nn

from pluralis import distributed
from pluralis.errors import RecipeError
from pluralis.freed_memory import keep_freed_memory
from pluralis.method import Method

PRECISIONS = ("auto", "fp32", "bf16")


@dataclass(frozen=True)
class Runtime:
    """The device and the precision of a run."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: str = "auto"  # auto = bf16 on a GPU that has it, fp32 elsewhere
    compile: bool = False
    autotune: bool = False  # try every convolution kernel at first: pays for itself in long runs only
    deterministic: bool = False  # bit-equal on a GPU too, at some cost in speed
    record: bool = True  # replay training passes on a GPU as CUDA graphs, see models/recorded.py

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise RecipeError(f"run.precision is {self.precision!r}; it must be one of {', '.join(PRECISIONS)}")

    @property
    def bf16(self) -> bool:
        if self.precision == "auto":
            return self.device.type == "cuda" and torch.cuda.is_bf16_supported()
        return self.precision == "bf16"

    def autocast(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self.bf16 else nullcontext()

    def place(self, method: Method) -> None:
        """Move the method to the device, and make its networks fast there."""
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = self.autotune and not self.deterministic
        if self.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it
            torch.use_deterministic_algorithms(True)
        method.to(self.device)
        for _, net in method.networks():
            self.lay_out(net)
            if self.compile and net._compiled_call_impl is None:
                net.compile()
            alone = self.device.type == "cuda" and distributed.world_size() == 1
            net.record(self.record and alone and not self.compile and net.backbone.recordable)

    def lay_out(self, net: nn.Module) -> None:
        """Move a network to the device, in the layout that its convolutions are fastest in.

        On a CPU the process keeps the memory of its maps from then on (`freed_memory.py`).
        """
        net.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.device.type == "cpu" and any(isinstance(module, nn.Conv2d) for module in net.modules()):
            keep_freed_memory()


def choose_device(name: str) -> torch.device:
    """`auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RecipeError(f"run.device is {name!r}; use auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise RecipeError(f"run.device is {name!r}; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RecipeError(f"run.device is {name!r}, but torch sees no GPU here; use auto or cpu")
    return device
