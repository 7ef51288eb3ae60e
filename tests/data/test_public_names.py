"""The names that other code calls: `pluralis.data.read`, `write` and the protocols, with the literature's defaults."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pluralis
from pluralis.data.formats import FORMATS
from pluralis.labels import Labels

PROTOCOLS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "single_positive": (["labels", "seed"], {"seed": 1200}),
    "one_positive_all_negatives": (["labels", "seed"], {"seed": 1200}),
    "known_ratio": (["labels", "ratio", "seed"], {"seed": 0}),
    "drop_positives": (["labels", "rate", "seed"], {"seed": 0}),
    "fixed_per_class": (["labels", "count", "seed"], {"seed": 0}),
    "flip_positives": (["labels", "rate", "seed"], {"seed": 0}),
    "split": (["rows", "fraction", "seed"], {"fraction": 0.2, "seed": 1200}),
}


def parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(call).parameters.values())


def test_one_import_is_enough() -> None:
    code = "import pluralis; print(pluralis.data.read, pluralis.data.write, pluralis.data.protocols.split(10)[1])"
    assert "[" in subprocess.check_output([sys.executable, "-c", code], text=True)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocols_as_they_are_called(name: str) -> None:
    names, defaults = PROTOCOLS[name]
    found = parameters(getattr(pluralis.data.protocols, name))[: len(names)]
    assert [p.name for p in found] == names
    assert all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in found)
    assert {p.name: p.default for p in found if p.default is not inspect.Parameter.empty} == defaults


def test_protocols_take_their_seed_by_place_and_by_name() -> None:
    full = Labels.from_dense(np.where(np.random.default_rng(0).random((40, 6)) < 0.4, 1, -1))
    for name, value in (("known_ratio", 0.3), ("drop_positives", 0.5), ("fixed_per_class", 4), ("flip_positives", 0.5)):
        protocol = getattr(pluralis.data.protocols, name)
        assert protocol(full, value, 3) == protocol(full, value, seed=3) != protocol(full, value, 4)
    single = pluralis.data.protocols.single_positive
    assert single(full) == single(full, 1200) != single(full, 7)
    train, val = pluralis.data.protocols.split(rows=40, fraction=0.25, seed=1)
    assert (len(train), len(val)) == (30, 10)


def test_read_and_write_as_they_are_called(tmp_path: Path) -> None:
    first, second, rest = parameters(pluralis.data.read)
    assert (first.name, second.name, rest.kind) == ("format", "path", inspect.Parameter.VAR_KEYWORD)
    assert [p.name for p in parameters(pluralis.data.write)][:2] == ["format", "path"]
    for name in ("b.jpg", "a.jpg", "c.jpg"):
        (tmp_path / name).touch()
    labels = Labels.from_dense([[1, 0], [0, -1]], ["cat", "dog"], ["c.jpg", "a.jpg"])
    pluralis.data.write("csv", tmp_path / "labels.csv", labels)
    found = pluralis.data.read("csv", tmp_path / "labels.csv", images=tmp_path)
    assert found.labels.ids == ("a.jpg", "c.jpg")  # sorted by id, whatever the order in the file
    assert found.images == [(tmp_path / name).resolve() for name in found.labels.ids]
    assert found.labels.dense().tolist() == [[0, -1], [1, 0]]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_says_its_order_and_what_not_listed_means(name: str) -> None:
    """Rows by id, or in a published order; a reader that takes `unlisted` explains it."""
    reader = FORMATS[name].read
    text = " ".join((inspect.getdoc(reader) or "").split())
    assert "`unlisted`" in text or "unlisted" not in inspect.signature(reader).parameters
    if name in ("npy", "nus", "cub"):
        assert "rows" in text.lower()
        assert "order of the" in text
