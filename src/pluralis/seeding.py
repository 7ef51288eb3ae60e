"""All randomness is a function of a seed and a position, so nothing random ever has to be saved."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, *position: int | str) -> int:
    """A 63-bit seed that depends on every part of the position and on nothing else."""
    digest = hashlib.blake2b(repr((seed, *position)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *position: int | str) -> torch.Generator:
    """A CPU generator that starts at `derive(seed, *position)`."""
    return torch.Generator().manual_seed(derive(seed, *position))


def seed_global(seed: int, *position: int | str) -> None:
    """Start the global generators of the CPU, and of the GPUs if they are in use, at `derive(seed, *position)`.

    `torch.manual_seed` would also queue a call for every kind of device that is not there, which takes longer than a
    small training step does.
    """
    value = derive(seed, *position)
    torch.default_generator.manual_seed(value)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(value)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Leave the global generators as they were, whatever is done to them inside.

    >>> _ = torch.manual_seed(0)
    >>> with generators_kept():
    ...     seed_global(7, "step", 3)
    >>> torch.initial_seed()
    0
    """
    cpu = torch.default_generator.get_state()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        torch.default_generator.set_state(cpu)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)
