"""Parquet files that are small on the disk and would be huge in memory; and the ways of packing that they misuse."""

import json
import subprocess
import sys

import numpy as np
import pytest

from pluralis.data import read
from pluralis.data.formats import parquet as module
from pluralis.data.formats import parquet_columns
from pluralis.errors import DataError
from pluralis.labels import Labels

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

MEGABYTE, ROWS = 1 << 20, 1_000_000
CHILD = """
import json, re, resource, sys
from pathlib import Path
import pyarrow.compute, pyarrow.parquet
from pluralis.data import read
from pluralis.errors import DataError
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
before, words = peak(), ""
try:
    read("parquet", sys.argv[1], images=sys.argv[2])
except DataError as error:
    words = str(error)
print(json.dumps([words, peak() - before]))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (tmp_path / "images" / name).touch()
    return tmp_path / "images"


def refused(path, folder):
    """What a process with little memory says of the file, and the megabytes that it took to say so."""
    out = subprocess.check_output([sys.executable, "-c", CHILD, str(path), str(folder)], text=True)
    return json.loads(out)


def packed(text, rows=ROWS):
    """One text in all rows, which a file holds once."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


def write(path, **columns):
    """Without Arrow's own note of the types: to readers these are plain texts."""
    settings = {"store_schema": False, "write_statistics": False, "dictionary_pagesize_limit": 16 * MEGABYTE}
    parquet.write_table(pa.table(columns), path, compression="zstd", **settings)
    assert path.stat().st_size < 100_000


SHORT, HUGE = packed("a.jpg"), packed("x" * MEGABYTE)
BOMBS = {
    "image": ({"image": HUGE, "label": SHORT}, "a name in the column 'image' is over 4,096 bytes"),
    "label": ({"image": SHORT, "label": HUGE}, "a name in the column 'label' is over 4,096 bytes"),
    "value": ({"image": SHORT, "label": SHORT, "value": HUGE}, "the column 'value' holds string; give numbers"),
    "image, wide": ({"image": HUGE, "dog": pa.nulls(ROWS)}, "a name in the column 'image' is over 4,096 bytes"),
    "class, wide": ({"image": SHORT, "dog": HUGE}, "the column 'dog' holds string; give numbers"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_text_that_all_rows_share(tmp_path, folder, bomb):
    """A megabyte in a million rows would be a terabyte."""
    columns, expected = BOMBS[bomb]
    write(tmp_path / "bomb.parquet", **columns)
    words, megabytes = refused(tmp_path / "bomb.parquet", folder)
    assert f"bomb.parquet: {expected}" in words
    assert megabytes < 200


def test_a_text_that_all_rows_share_and_arrow_knows_of(tmp_path, folder):
    parquet.write_table(pa.table({"image": SHORT, "label": HUGE}), tmp_path / "bomb.parquet")
    words, megabytes = refused(tmp_path / "bomb.parquet", folder)
    assert "a name in the column 'label' is over 4,096 bytes" in words
    assert megabytes < 200


def test_names_as_long_as_they_may_be(tmp_path, folder):
    """Two gigabytes, if all rows were unpacked together."""
    write(tmp_path / "long.parquet", image=packed("a.jpg", 500_000), label=packed("x" * 4096, 500_000))
    words, megabytes = refused(tmp_path / "long.parquet", folder)
    assert "row 2: image 'a.jpg', class 'xxx" in words
    assert "given twice, see row 1" in words
    assert megabytes < 400


def varint(number, length=0):
    """As a footer has it: seven bits a byte, the lowest first, with zeros behind to make `length` bytes."""
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest, length - 1) if rest or length > 1 else bytes([low])


@pytest.mark.parametrize("honest", [True, False])
def test_texts_that_begin_as_the_one_before(tmp_path, folder, honest):
    """Such a column holds the ends of its texts alone: 1,200 of half a megabyte take no more than one, or say so."""
    path = tmp_path / "bomb.parquet"
    program = f"""if True:
        import pyarrow, pyarrow.parquet
        table = pyarrow.table({{"image": ["x" * {MEGABYTE // 2}] * 1200, "label": ["dog"] * 1200}})
        ways = {{"image": "DELTA_BYTE_ARRAY", "label": "PLAIN"}}
        settings = {{"store_schema": False, "write_statistics": False, "compression": "zstd"}}
        pyarrow.parquet.write_table(table, {str(path)!r}, use_dictionary=False, column_encoding=ways, **settings)
    """
    subprocess.run([sys.executable, "-c", program], check=True)
    assert path.stat().st_size < 10_000
    if not honest:
        told = varint(2 * parquet.read_metadata(path).row_group(0).column(0).total_uncompressed_size)
        path.write_bytes(path.read_bytes().replace(told, varint(2, len(told))))
        assert parquet.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 1
    words, megabytes = refused(path, folder)
    assert "a name in the column 'image' is over 4,096 bytes" in words
    assert megabytes < 200


LABELS = [("a.jpg", "cat", 1), ("a.jpg", "dog", -1), ("b.jpg", None, None), ("c.jpg", "dog", 1), ("c.jpg", "cat", -1)]


@pytest.mark.parametrize("rows", [1, 2, 16384])
@pytest.mark.parametrize("group", [1, 3, 100])
@pytest.mark.parametrize("way", ["DICTIONARY", "PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_every_way_of_packing_reads_the_same(tmp_path, folder, monkeypatch, way, group, rows):
    monkeypatch.setattr(parquet_columns, "_ROWS", rows)
    monkeypatch.setattr(parquet_columns, "_FEW", rows)
    monkeypatch.setattr(module, "_CELLS", 3 * rows)
    columns = dict(zip(("image", "label", "value"), map(list, zip(*LABELS, strict=True)), strict=True))
    named = {} if way == "DICTIONARY" else {"image": way, "label": way}
    settings = {"column_encoding": named, "use_dictionary": False} if named else {}
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=group, **settings)
    data = read("parquet", tmp_path / "x.parquet", images=folder)
    assert data.labels.ids == ("a.jpg", "b.jpg", "c.jpg")
    assert data.labels.dense().tolist() == [[1, -1], [0, 0], [-1, 1]]


def test_dictionaries_that_are_given_up_in_the_middle(tmp_path, folder):
    """As writers do when an entry too many is in it: the rest of the column is plain."""
    names = [f"{number:05}.jpg" for number in range(5_000)]
    for name in names:
        (folder / name).touch()
    table = pa.table({"image": np.repeat(names, 2), "label": ["cat", "dog"] * 5_000, "value": [1, -1] * 5_000})
    parquet.write_table(table, tmp_path / "x.parquet", dictionary_pagesize_limit=20_000, data_page_size=10_000)
    (group,) = (parquet.read_metadata(tmp_path / "x.parquet").row_group(0).column(0),)
    assert {"PLAIN", "RLE_DICTIONARY"} <= set(group.encodings)
    data = read("parquet", tmp_path / "x.parquet", images=folder)
    assert list(data.labels.ids) == names
    assert (data.labels.dense() == [1, -1]).all()


def doubled(path, labels, **settings):
    """A file whose dictionary of labels has the entry dog twice, which no rule forbids."""
    table = pa.table({"image": ["a.jpg", "b.jpg", "c.jpg"], "label": labels})
    parquet.write_table(table, path, compression="none", write_statistics=False, **settings)
    written = path.read_bytes()
    assert written.count(b"gnu") == 1
    path.write_bytes(written.replace(b"gnu", b"dog"))


PLAIN = pa.array(["dog", "gnu", "cat"])
UNUSED = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int32()), ["dog", "gnu", "cat", "cow"])


@pytest.mark.parametrize("labels", [PLAIN, PLAIN.dictionary_encode(), UNUSED], ids=["plain", "dictionary", "unused"])
@pytest.mark.parametrize("noted", [True, False])
def test_an_entry_twice_in_a_dictionary_moves_no_label(tmp_path, folder, labels, noted):
    """Read as dictionaries, as Arrow would, c.jpg would have a label that is not there, or that of another."""
    doubled(tmp_path / "twice.parquet", labels, store_schema=noted)
    data = read("parquet", tmp_path / "twice.parquet", images=folder)
    assert data.labels.classes == ("cat", "dog")
    assert data.labels.dense().tolist() == [[0, 1], [0, 1], [1, 0]]


def test_a_note_of_dictionaries_that_is_spelt_in_another_way(tmp_path, folder):
    """It may not bring them back: the length of its key takes two bytes in place of one."""
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"image": ["a.jpg"], "label": UNUSED[:1]}), path)
    written = bytearray(path.read_bytes().replace(b"\x0cARROW:schema", b"\x8c\x00ARROW:schema"))
    written[-8:-4] = (int.from_bytes(written[-8:-4], "little") + 1).to_bytes(4, "little")
    path.write_bytes(written)
    with pytest.raises(DataError, match="the column 'label' holds dictionary<.*>; give texts"):
        read("parquet", path, images=folder)


@pytest.mark.parametrize("layout", ["long", "wide"])
def test_classes_called_as_the_note_of_the_types_is(tmp_path, folder, layout):
    labels = Labels.from_lists([[0], [1], [0, 1]], ["ARROW:schema", "ARROW-schema"], ids=["a.jpg", "b.jpg", "c.jpg"])
    module.write(tmp_path / "x.parquet", labels, layout=layout)
    assert read("parquet", tmp_path / "x.parquet", images=folder).labels == labels


TEXTS = ["large_string", "string_view", "dictionary<int8, large_string>"]
NUMBERS = ["float16", "uint64", "int8", "float64"]


@pytest.mark.parametrize("kind", TEXTS + NUMBERS)
def test_every_kind_of_texts_and_numbers(tmp_path, folder, kind):
    texts, number = pa.string(), pa.int64()
    if kind in NUMBERS:
        number = getattr(pa, kind)()
    else:
        texts = pa.dictionary(pa.int8(), pa.large_string()) if "dict" in kind else getattr(pa, kind)()
    image, label = (pa.array(names).cast(texts) for names in (["b.jpg", "a.jpg", "c.jpg"], ["dog", "cat", None]))
    value = pa.array([1, 1, None]).cast(number)
    parquet.write_table(pa.table({"image": image, "label": label, "value": value}), tmp_path / "x.parquet")
    data = read("parquet", tmp_path / "x.parquet", images=folder)
    assert data.labels.ids == ("a.jpg", "b.jpg", "c.jpg")
    assert data.labels.dense().tolist() == [[1, 0], [0, 1], [0, 0]]


def test_many_small_groups_are_read_together(tmp_path, folder, monkeypatch):
    """Each call of Arrow looks at all groups."""
    table = pa.table({"image": ["a.jpg"] * 40, "label": [f"{number:02}" for number in range(40)]})
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=1)
    calls, plain = [], parquet.ParquetFile.iter_batches
    monkeypatch.setattr(
        parquet.ParquetFile, "iter_batches", lambda *given, **more: calls.append(1) or plain(*given, **more)
    )
    for rows, expected in ((1 << 20, 2), (10, 8), (1, 80)):
        calls.clear()
        monkeypatch.setattr(parquet_columns, "_ROWS", rows)
        data = read("parquet", tmp_path / "x.parquet", images=folder)
        assert data.labels.dense().tolist() == [[1] * 40]
        assert len(calls) == expected


def test_a_footer_that_pyarrow_cannot_take_apart(tmp_path, folder):
    """Asked for the facts of a column whose histogram has a wrong length, it would end the process."""
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"image": ["a.jpg", "b.jpg"], "label": ["dog", None]}), path)
    empty = b"\x19\x06\x19&"  # two lists of numbers, of which the first has none
    if empty not in path.read_bytes():
        pytest.skip("this pyarrow writes no histograms")
    path.write_bytes(path.read_bytes().replace(empty, b"\x19\x41\x19&", 1))
    words, _ = refused(path, folder)
    assert "x.parquet: is not a sound Parquet file: " in words


def test_rows_without_end(tmp_path, folder, monkeypatch):
    """A few bytes can stand for any number of equal rows: the file says how many, and is held to it."""
    columns = {"image": ["a.jpg", "b.jpg", "c.jpg"], "label": ["dog"] * 3}
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    assert len(read("parquet", tmp_path / "x.parquet", images=folder)) == 3
    monkeypatch.setattr(parquet_columns, "_MOST", 2)
    with pytest.raises(DataError, match=r"x\.parquet: 3 rows are over the limit of 2; split the file"):
        read("parquet", tmp_path / "x.parquet", images=folder)
    told = b"\x16\x06"  # the first in the footer is the count of all rows
    written, start = (
        (tmp_path / "x.parquet").read_bytes(),
        parquet.read_metadata(tmp_path / "x.parquet").serialized_size,
    )
    footer = written[-8 - start :].replace(told, b"\x16\x02", 1)
    (tmp_path / "x.parquet").write_bytes(written[: -8 - start] + footer)
    assert parquet.read_metadata(tmp_path / "x.parquet").num_rows == 1
    with pytest.raises(DataError, match=r"x\.parquet: 3 rows are over the limit of 2; split the file"):
        read("parquet", tmp_path / "x.parquet", images=folder)
