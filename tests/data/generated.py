"""Inputs that nobody would write: damaged copies of good files must give documented errors alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pluralis.data.dataset import require_files
from pluralis.errors import DataError, LabelError
from pluralis.labels import Labels

SAMPLES = Path(__file__).parent / "samples"
EXAMPLES = [40, pytest.param(10_000, marks=pytest.mark.slow)]
TRIPS = [40, pytest.param(2_000, marks=pytest.mark.slow)]  # each writes to the disk and waits until it is there

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-2, 20)
    | st.floats()
    | st.sampled_from(["", "a.jpg", "../a", "/etc/passwd", "\0", "\ud800", "é", "=1+1", 10**400, -(2**70), "x" * 5000])
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def damaged_json(draw: st.DrawFn, content: Any) -> str:
    """The JSON text of `content` with one to three values replaced, removed or doubled, at any depth."""
    made = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, 3))):
        place, steps = made, draw(st.integers(0, 7))
        while isinstance(place, dict | list) and place:
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            if steps and isinstance(place[key], dict | list) and place[key]:
                place, steps = place[key], steps - 1
                continue
            change = draw(st.sampled_from(["replace", "remove", "double"]))
            if change == "remove":
                del place[key]
            elif change == "double" and isinstance(place, list):
                place.append(copy.deepcopy(place[key]))
            else:
                place[key] = draw(anything)
            break
    text = json.dumps(made)
    return text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 19)) == 0 else text


@st.composite
def damaged_text(draw: st.DrawFn, text: str, pieces: list[str]) -> bytes:
    """The text with pieces put in, bytes changed or parts cut out, at one to four places."""
    made = bytearray(text.encode())
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(made)))
        stop = min(len(made), start + draw(st.integers(0, 12)))
        encoded = [piece.encode("utf-8", "surrogatepass") for piece in (*pieces, "x" * 5000)]
        made[start:stop] = draw(st.sampled_from(encoded) | st.binary(max_size=3))
    return bytes(made)


def only_documented_errors(
    examples: int, inputs: st.SearchStrategy[Any], read: Callable[[Any], Any], name: str
) -> None:
    """`read` gives something, or an error of one line that names the place: a file (`name`) or an option."""
    outcomes = {"read": 0, "refused": 0}

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(inputs)
    def run(value: Any) -> None:
        try:
            data = read(value)
            require_files(data.images)
        except (DataError, LabelError) as error:
            message = str(error)
            assert "\n" not in message
            assert name in message
            assert len(message) < 2000
            outcomes["refused"] += 1
        else:
            assert len(data.images) == len(data.labels)
            assert all(path.is_file() for path in data.images)
            outcomes["read"] += 1

    run()
    assert outcomes["refused"]  # else nothing was damaged


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


odd_names = st.sampled_from(["=1", "'x", "-a", "a,b", '"', "\r", "\n"])
any_name = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8) | odd_names


@st.composite
def labels(
    draw: st.DrawFn, kind: str = "signed", blank: bool = True, classes: st.SearchStrategy[str] = any_name
) -> Labels:
    """Small labels, rows sorted by id: "signed" of all three kinds, "unknown" without absent ones, "absent" complete.

    With `blank`, some rows of complete labels have none at all, and rows of others may.
    """
    names = draw(st.lists(classes, min_size=1, max_size=4, unique=True))
    stems = draw(st.lists(st.sampled_from("abcdefgh/é ’%+#&?="), max_size=5, unique=True))
    ids = sorted(f"{stem.replace('/', 's/t')}.jpg" for stem in stems)
    values = {"signed": [1, 0, -1], "unknown": [1, 0], "absent": [1, -1]}[kind]
    rows = []
    for _ in ids:
        row = draw(st.lists(st.sampled_from(values), min_size=len(names), max_size=len(names)))
        if blank and draw(st.integers(0, 4)) == 0:
            row = [0] * len(names)
        if not blank and not any(row):
            row[0] = 1
        rows.append(row)
    return Labels.from_dense(rows, names, ids) if rows else Labels([0], [], [], names, [])


def exact(examples: int, inputs: st.SearchStrategy[Labels], go_and_return: Callable[[Labels], Labels]) -> None:
    """Written and read again, the labels are the same."""

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(inputs)
    def run(value: Labels) -> None:
        assert go_and_return(value) == value

    run()
