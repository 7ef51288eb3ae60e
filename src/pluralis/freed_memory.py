"""What becomes of memory that is free again, on Linux with glibc; elsewhere these do nothing.

Asked for it again, the kernel clears it page by page, which takes longer than many an operation on it.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache

# Parameters of `mallopt`, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_LARGEST_MAP = 2**30
_NEVER = -1
_KEPT_BY_ITSELF = 31 * 2**20
_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")


@cache
def keep_freed_memory() -> bool:
    """Have malloc keep what the maps of a network leave behind, for the next layer and step; whether it agreed.

    By default blocks of 32 MiB and more are mappings of their own, new each time. Now only those of 1 GiB and more are
    (with a glibc before 2.35, which cannot be told so, none), and the process stays as large as it once was, until
    `return_freed_memory`. It is so for the whole process, but in other threads than the first one only up to 64 MiB.
    Whoever has set these things by the environment is left alone.
    """
    own = any(name in os.environ for name in _SETTINGS) or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    if own or not _has_glibc():
        return False
    mallopt = ctypes.CDLL(None).mallopt
    larger = mallopt(_MMAP_THRESHOLD, _LARGEST_MAP) or mallopt(_MMAP_MAX, 0)
    return bool(larger and mallopt(_TRIM_THRESHOLD, _NEVER))


def keep_smaller_blocks() -> None:
    """Have malloc keep what pictures and batches leave behind, without setting anything.

    Of itself it keeps blocks up to the size of the largest that it has seen freed, but for 32 MiB at most.
    """
    bytearray(_KEPT_BY_ITSELF)


def return_freed_memory() -> None:
    """Give the kernel all that is free: for another process, or because it is not needed again so soon."""
    if _has_glibc():
        ctypes.CDLL(None).malloc_trim(0)


@cache
def _has_glibc() -> bool:
    return platform.libc_ver()[0] == "glibc"
