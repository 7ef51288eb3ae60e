"""Whether Triton, in which the fused kernels for GPUs are written, is installed."""

from __future__ import annotations

import importlib.util
from functools import cache


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
