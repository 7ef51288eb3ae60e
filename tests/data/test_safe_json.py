"""JSON that strangers made: limits, and errors that name the file and the place."""

import json
import time
import tracemalloc

import pytest

from pluralis.data import safe_json
from pluralis.data.safe_json import Document, needed, write_lists
from pluralis.errors import DataError

HOSTILE = {
    "cut": (b'{"a": [1, 2', "is not JSON"),
    "no text": (b"\xff\xfe\x00", "is not JSON"),
    "nothing": (b"", "is not JSON"),
    "lists in lists": (b"[" * 200_000, "nested too deeply"),
    "objects in objects": (b'{"a":' * 200_000, "nested too deeply"),
    "deep and closed": (b"[" * 50_000 + b"]" * 50_000, "nested too deeply"),
    "a long number": (b"1" * 100_000, "is not JSON: Exceeds the limit"),
    "NaN": (b'{"a": NaN}', "holds NaN, which is no number"),
    "infinity": (b"[-Infinity]", "holds -Infinity"),
    "a key twice": (b'{"a": {"b": 1, "c": 2, "b": 1}}', "the key 'b' is given twice in one object"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(tmp_path, name):
    content, words = HOSTILE[name]
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        Document(tmp_path / "x.json")
    assert str(caught.value).startswith(f"{tmp_path / 'x.json'}: ")
    assert len(str(caught.value)) < 600


def test_a_key_twice_among_many_is_found_at_once(tmp_path):
    keys = [*(f'"k{number}": 1' for number in range(100_000)), '"k99999": 2']
    (tmp_path / "x.json").write_text(f"{{{', '.join(keys)}}}")
    start = time.process_time()
    with pytest.raises(DataError, match="the key 'k99999' is given twice in one object"):
        Document(tmp_path / "x.json")
    assert time.process_time() - start < 2  # looking each one up in a list would take minutes


def test_places_that_are_no_file(tmp_path):
    for path in (tmp_path, tmp_path / "no", tmp_path / "a\0b"):
        with pytest.raises(DataError):
            Document(path)


def test_the_limit_of_size_holds_before_reading(tmp_path):
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(10**12)  # takes no room on the disk, and would take all of the memory
    with pytest.raises(DataError, match="over the limit of 4,294,967,296 bytes"):
        Document(tmp_path / "x.json")


SMALL = ["{}", "[]", "[0]", "[[]]", "[{}]", '{"":0}', '{"":{}}', '"ab"', "1000", "1.5", "null", '"日本"']
SMALL += ['{"#":1}', '{"#":"#"}', '{"#":[],"b":[],"c":[],"d":[],"e":[],"f":[]}', '{"a":["#"]}']


@pytest.mark.parametrize("value", SMALL)
@pytest.mark.parametrize("way", ["in a list", "in an object"])
def test_memory_is_counted_before_it_is_spent(tmp_path, monkeypatch, value, way):
    """What takes most for its size: the count must not be less, or it would be no limit."""
    values = [value.replace("#", f"{n:07}") for n in range(5_000)]
    entries = values if way == "in a list" else [f'"{n}":{entry}' for n, entry in enumerate(values)]
    body = ",".join(entries).join("[]" if way == "in a list" else "{}")
    (tmp_path / "x.json").write_text(body, encoding="utf-8")
    bound, size = needed((tmp_path / "x.json").read_bytes()), (tmp_path / "x.json").stat().st_size
    tracemalloc.start()
    try:
        Document(tmp_path / "x.json")
        peak = tracemalloc.get_traced_memory()[1]
        assert peak < bound + 2 * size + 20_000
        monkeypatch.setattr(safe_json, "MAX_MEMORY", bound - 1)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        with pytest.raises(DataError, match=r"x\.json: its values could take over [0-9,]+ bytes of memory; split it"):
            Document(tmp_path / "x.json")
        assert tracemalloc.get_traced_memory()[1] - before < 2 * size + 20_000
    finally:
        tracemalloc.stop()


def test_the_largest_published_files_are_below_the_limit():
    """LVIS v1 is 1.2 GB, most of it outlines of some ninety numbers."""
    entry = {"area": 187.0, "id": 1268001, "segmentation": [[123.45, 67.8] * 45], "image_id": 391895, "category_id": 77}
    text = json.dumps({**entry, "bbox": [123.45, 67.8, 20.13, 9.1]}).encode() + b", "
    assert needed(text) * 1.2e9 / len(text) < 0.75 * safe_json.MAX_MEMORY


def test_what_is_not_asked_for_is_let_go(tmp_path):
    (tmp_path / "x.json").write_text('{"a": [{"b": 1, "c": [2], "c": 3}], "d": {"a": 1}}')
    assert Document(tmp_path / "x.json", keys={"a", "b"}).content == {"a": [{"b": 1}]}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_encodings_of_the_standard(tmp_path, encoding):
    (tmp_path / "x.json").write_text('{"é": ["日"]}', encoding=encoding)
    assert Document(tmp_path / "x.json").content == {"é": ["日"]}


def test_checks_name_the_place(tmp_path):
    (tmp_path / "x.json").write_text('{"n": 1.0, "t": "", "h": "\\ud800", "s": 1e999, "b": true, "l": [1]}')
    document = Document(tmp_path / "x.json")
    found = document.content
    for check, key, words in (
        (document.whole, "n", "n is 1.0; give a whole number"),
        (document.whole, "b", "b is True"),
        (document.text, "t", "t is ''; give a text"),
        (document.text, "h", "half a character"),
        (document.share, "s", "s is inf; give a number from 0 to 1"),
        (document.share, "b", "b is True"),
        (document.mapping, "l", "l is not an object"),
        (document.listed, "b", "b is not a list"),
    ):
        with pytest.raises(DataError, match=words):
            check(found[key], key)
    with pytest.raises(DataError, match=r"l\[0\] is not an object"):
        list(document.objects(found["l"], "l"))


def test_lists_are_written_in_pieces(tmp_path):
    write_lists(tmp_path / "x.json", {"a": (n for n in range(3)), "b": iter([])})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [0, 1, 2], "b": []}
    write_lists(tmp_path / "x.json", ({"é": n} for n in range(2)))
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == [{"é": 0}, {"é": 1}]

    def broken():
        yield 1
        raise DataError("no more")

    with pytest.raises(DataError, match="no more"):
        write_lists(tmp_path / "x.json", broken())
    assert len(json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
