"""A bench that several tests look at, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.benches import TWO, run_bench, write_spec


@pytest.fixture(scope="session")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A spec, and a folder in which all its runs are done."""
    folder = tmp_path_factory.mktemp("bench")
    spec = write_spec(folder, TWO)
    queue = run_bench(spec, folder / "out")
    assert (len(queue.finished), queue.made, queue.failures) == (3, 3, {})
    return spec, folder / "out"
