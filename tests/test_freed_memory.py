"""A network on the CPU reuses the memory of its maps; what runs in a process of its own shows it by page faults."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
pytestmark = [
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is told to"),
    pytest.mark.skipif(HUGE.exists() and "[always]" in HUGE.read_text(), reason="pages are of any size"),
]

FAULTS = """
import resource, torch
from pluralis.losses import create_loss
from pluralis.method import LossMethod
from pluralis.models import create_model
from pluralis.runtime import Runtime

network = {network}
if network is not None:
    Runtime().place(LossMethod(network, create_loss("an")))
for _ in range(10):
    torch.ones(2**24).add_(1)  # 64 MiB, or 16,384 pages
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**24).add_(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

GIVEN_BACK = """
import os, torch
from pathlib import Path
from pluralis.freed_memory import keep_freed_memory, return_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

assert keep_freed_memory()
for _ in range(10):
    torch.ones(2**26)  # 256 MiB
before = resident()
return_freed_memory()
print(before - resident())
"""


def _run(code: str, **environment: str) -> int:
    own = ("MALLOC_", "GLIBC_", "THP_")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=plain | environment, check=True, capture_output=True, text=True)
    return int(done.stdout)


def _faults(network: str, **environment: str) -> int:
    return _run(FAULTS.format(network=network), **environment)


@pytest.mark.parametrize(
    "environment",
    [{}, {"MALLOC_ARENA_MAX": "2", "GLIBC_TUNABLES": "glibc.rtld.optional_static_tls=1024"}],  # of other things
)
def test_a_network_with_convolutions_on_the_cpu_has_its_memory_kept(environment: dict[str, str]) -> None:
    assert _faults('create_model("tiny", 2)', **environment) < 1000


@pytest.mark.parametrize(
    ("network", "environment"),
    [
        ("None", {}),
        ("torch.nn.Linear(4, 2)", {}),  # features in a process that is somebody else's
        ('create_model("tiny", 2)', {"MALLOC_TOP_PAD_": "131072"}),  # set up by whoever runs it
        ('create_model("tiny", 2)', {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}),
    ],
)
def test_otherwise_malloc_is_left_as_it_is(network: str, environment: dict[str, str]) -> None:
    assert _faults(network, **environment) > 10_000


def test_what_was_kept_can_be_given_back() -> None:
    assert _run(GIVEN_BACK) > 2**27
