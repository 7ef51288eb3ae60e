"""Real runs, trained once for all tests of figures."""

from __future__ import annotations

import pytest

from pluralis.bench.store import Result
from tests.bench.figures.runs import train_result


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    home = tmp_path_factory.mktemp("runs")
    guessing = {"method__params": {"warmup": 1, "positive_theta": 0.1}}
    decoder = {"model__head": "label-decoder", "model__head_params": {"dim": 16}}
    return [
        train_result(home / "an-0", "an", "an"),
        train_result(home / "an-1", "an", "an", seed=1),
        train_result(home / "em", "em + apl", "em-apl", **guessing),
        train_result(home / "decoder", "decoder", "an", **decoder),
    ]
