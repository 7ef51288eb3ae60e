"""Labels that lie beside images in tar files, as nobody would write them: documented errors alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from pluralis.data import read
from pluralis.data.dataset import Dataset
from pluralis.errors import DataError, LabelError
from tests.data.generated import EXAMPLES, damaged_json
from tests.data.tables import for_all
from tests.data.test_shards import pack

ENTRY = {"labels": {"dog": 1, "car": -1}, "width": 640, "source": {"id": 7}}
LISTS = {"positives": ["dog"], "negatives": ["car", "cow"]}


@pytest.mark.parametrize("examples", EXAMPLES)
def test_generated_labels_raise_only_documented_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, examples: int
) -> None:
    monkeypatch.setenv("PLURALIS_CACHE", str(tmp_path / "cache"))
    path, outcomes = tmp_path / "x.tar", {"read": 0, "refused": 0}

    def check(drawn: tuple[str, str, bytes, dict[str, Any]]) -> None:
        one, two, three, options = drawn
        notes = {"a.json": one.encode(), "b.json": two.encode(), "sub/c.cls": three}
        pack(path, {"a.png": b"", "b.jpg": b"", "sub/c.webp": b"", **notes})
        try:
            data = read("shards", path, **options)
        except (DataError, LabelError) as error:
            outcomes["refused"] += 1
            message = str(error)
            assert "x.tar" in message
            assert "\n" not in message
            assert len(message) < 2000
        else:
            outcomes["read"] += 1
            assert isinstance(data, Dataset)
            assert data.labels.ids == ("a.png", "b.jpg", "sub/c.webp")

    options = st.sampled_from([{}, {"unlisted": "absent"}, {"classes": ["car", "dog", "cow"]}])
    names = st.sampled_from([b"dog", b"1", b"", b"\xff", b" cow\n", b"99999999999", "\u00b2".encode()])
    check((json.dumps(ENTRY), json.dumps(LISTS), b"dog", {}))  # of 40 that are drawn, none may be sound
    assert outcomes["read"] == 1
    for_all(st.tuples(damaged_json(ENTRY), damaged_json(LISTS), names, options), check, examples)
    assert outcomes["refused"]
