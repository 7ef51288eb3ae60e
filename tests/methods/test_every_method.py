"""Every method, by name, through the one set of checks; and what two processes make of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from pluralis.methods import every_method
from tests.children import call, call_in_two
from tests.methods.check_method import check_method
from tests.methods.two_processes import main

NAMES = sorted(every_method())
# What looks at a batch as a whole: ranks, means or pairs over its rows. The others must not care how it is divided.
COUPLED = {
    "bce", "cls", "co-teaching", "co-teaching+", "csl", "decoupling", "epr", "jocor", "lac", "ll-cp", "ll-ct", "ll-r",
    "nnpu", "pu-mlc", "role", "vpu",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_method(name: str, tmp_path: Path) -> None:
    check_method(name, tmp_path)


def test_two_processes(tmp_path: Path) -> None:
    """Both hold the same state, label state and queues too; and that of one process unless the batch matters."""
    for done in (call(main, tmp_path / "one"), *call_in_two(main, tmp_path / "two")):
        assert done.returncode == 0, done.stderr[-3000:]
    compared = set()
    for name in NAMES:
        if not every_method()[name].batch_coupled:
            one, two = (load_file(tmp_path / where / f"{name}.safetensors") for where in ("one", "two"))
            for key, value in one.items():
                assert_close(two[key], value, rtol=1e-4, atol=1e-6, msg=lambda m, k=key, n=name: f"{n} {k}: {m}")
            compared.add(name)
    assert compared == set(NAMES) - COUPLED
    assert len(compared) == 20
