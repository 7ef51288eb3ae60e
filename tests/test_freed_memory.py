"""A network on the CPU reuses the memory of its maps; what runs in a process of its own shows it by page faults."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is told to")

FAULTS = """
import resource, torch
from pluralis.losses import create_loss
from pluralis.method import LossMethod
from pluralis.models import create_model
from pluralis.runtime import Runtime

network = {network}
if network is not None:
    Runtime().place(LossMethod(network, create_loss("an")))
for _ in range(3):
    torch.ones(2**24).add_(1)  # 64 MiB, or 16,384 pages
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**24).add_(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(network: str, **environment: str) -> int:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", FAULTS.format(network=network)]
    done = subprocess.run(command, env=plain | environment, check=True, capture_output=True, text=True)
    return int(done.stdout)


def test_a_network_with_convolutions_on_the_cpu_has_its_memory_kept() -> None:
    assert _faults('create_model("tiny", 2)') < 1000


@pytest.mark.parametrize(
    ("network", "environment"),
    [
        ("None", {}),
        ("torch.nn.Linear(4, 2)", {}),  # features in a process that is somebody else's
        ('create_model("tiny", 2)', {"MALLOC_TOP_PAD_": "131072"}),  # set up by whoever runs it
    ],
)
def test_otherwise_malloc_is_left_as_it_is(network: str, environment: dict[str, str]) -> None:
    assert _faults(network, **environment) > 10_000
