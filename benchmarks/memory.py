"""The memory that a process has taken at most."""

from __future__ import annotations

import re
from pathlib import Path


def peak_megabytes() -> float:
    """Of this process (Linux). Not `ru_maxrss`, which a process takes over from the one that started it."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024
