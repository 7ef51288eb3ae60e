"""On Linux, keep the memory that a network's maps give back: asking the kernel for it again costs half of the time."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import cache

# Parameters of `mallopt`, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_MAP = 2**30
_NEVER = -1


@cache
def keep_freed_memory() -> bool:
    """Let glibc's malloc reuse blocks below 1 GiB instead of returning them; whether it does so.

    By default each block of 32 MiB and more is a mapping of its own, which the kernel clears, page by page, whenever
    it is asked for: at every layer of every step. The process then stays as large as it once was. Whoever has set
    malloc up by the environment is left alone.
    """
    own = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if own or sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_MAP) and mallopt(_TRIM_THRESHOLD, _NEVER))
