"""A backbone's forward and backward pass, recorded once as CUDA graphs and replayed at every step.

A small network runs hundreds of short kernels a pass; starting each of them from Python takes longer than the GPU needs
for it. A replay starts them all at once, and computes the same.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_MOST = 8
"""Recordings that are kept; each holds the activations of a pass. Further shapes run as usual."""


class Recorded:
    """Calls `module`, a backbone; its training passes on a GPU are replayed, everything else runs as usual.

    A recording is used again only when the backward pass of its last use is done, or can no longer come: a method that
    looks at two views before it goes backward gets two. Training modes, what is frozen, and where the weights lie are
    part of a recording; when they change, all are made anew. Gradients lie in the recording's memory, so they must be
    used before the next forward pass, as a training step does.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._state: tuple[Any, ...] = ()
        self._recordings: dict[tuple[Any, ...], list[_Recording]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        out = self._replay(x) if self._applies(x) else self._module(x)
        assert isinstance(out, Tensor)
        return out

    def _applies(self, x: Tensor) -> bool:
        learns = self._module.training and torch.is_grad_enabled() and not x.requires_grad
        return learns and x.is_cuda and any(p.requires_grad for p in self._module.parameters())

    def _replay(self, x: Tensor) -> Tensor:
        state = tuple(m.training for m in self._module.modules()) + tuple(
            (p.data_ptr(), p.requires_grad) for p in self._module.parameters()
        )
        if state != self._state:
            self._state, self._recordings = state, {}
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        same = self._recordings.setdefault((x.shape, x.stride(), x.dtype, dtype), [])
        recording = next((one for one in same if not one.busy), None)
        if recording is None:
            if sum(map(len, self._recordings.values())) >= _MOST:
                out: Tensor = self._module(x)
                return out
            recording = _Recording(self._module, x, dtype)
            same.append(recording)
        return recording(x)


class _Pending:
    """Lives as long as the backward pass of a replay can still come."""

    done = False


class _Recording:
    def __init__(self, module: nn.Module, x: Tensor, dtype: torch.dtype | None) -> None:
        self._pending: Callable[[], _Pending | None] = lambda: None
        sample = torch.empty_like(x).copy_(x)
        # The casts of the weights must be part of the recording, not left from a cache of the step it was made in.
        with (
            torch.autocast("cuda", dtype=dtype, enabled=dtype is not None, cache_enabled=False),
            _buffers_kept(module),
            torch.random.fork_rng([x.device]),  # a recording draws too, and a replay draws as the pass itself would
        ):
            wrapped = _Wrapped(module)
            self._replay = torch.cuda.make_graphed_callables(wrapped, (sample,), allow_unused_input=True)

    @property
    def busy(self) -> bool:
        pending = self._pending()
        return pending is not None and not pending.done

    def __call__(self, x: Tensor) -> Tensor:
        pending = _Pending()
        self._pending = weakref.ref(pending)
        out: Tensor = _Mark.apply(self._replay(x), pending)
        return out


class _Wrapped(nn.Module):
    """What is recorded: its `forward` is replaced, and that of the module is left alone."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.training = module.training
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out


class _Mark(torch.autograd.Function):
    """Passes through, and notes that the backward pass has come."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pending: _Pending) -> Tensor:
        ctx.pending = pending
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.pending.done = True
        return grad, None


@contextmanager
def _buffers_kept(module: nn.Module) -> Iterator[None]:
    """Recording runs the module several times; batch-norm statistics are as before afterwards."""
    before = [buffer.clone() for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(module.buffers(), before, strict=True):
                buffer.copy_(value)
