"""All randomness is a function of a seed and a position, so nothing random ever has to be saved."""

from __future__ import annotations

import hashlib

import torch


def derive(seed: int, *position: int | str) -> int:
    """A 63-bit seed that depends on every part of the position and on nothing else."""
    digest = hashlib.blake2b(repr((seed, *position)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *position: int | str) -> torch.Generator:
    """A CPU generator that starts at `derive(seed, *position)`."""
    return torch.Generator().manual_seed(derive(seed, *position))
