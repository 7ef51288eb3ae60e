"""Files decoded by Pillow and nothing else, in fresh processes of their own: what the loader is measured against.

A process is this file as a program. It gets its files on the first line; on each further line it decodes them all, with
`Image.open(file).convert("RGB")` and `np.asarray`, and answers with the processor time that took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# The C library gives the memory of each image back to the kernel, which clears and maps it for the next one: half of
# the time of bare Pillow. With these settings it keeps the memory.
KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**26)}


@contextmanager
def bare_pillow(files: Sequence[Path], processes: int, keep: bool = False) -> Iterator[Callable[[], float]]:
    """A function that decodes all files and returns the processor seconds of that."""
    environment = {**os.environ, **(KEEP if keep else {})}
    started = []
    try:
        for number in range(processes):
            process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
            started.append(process)
            _tell(process, json.dumps([str(file) for file in files[number::processes]]))

        def decode_all() -> float:
            for process in started:
                _tell(process, "again")
            return sum(float(process.stdout.readline()) for process in started if process.stdout)

        yield decode_all
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _answer() -> None:
    import numpy as np
    from PIL import Image

    files = json.loads(sys.stdin.readline())
    for _ in sys.stdin:
        start = time.process_time()
        for file in files:
            with Image.open(file) as image:
                np.asarray(image.convert("RGB"))
        print(time.process_time() - start, flush=True)


if __name__ == "__main__":
    _answer()
