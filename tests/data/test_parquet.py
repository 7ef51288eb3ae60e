"""Parquet in both shapes: what it means, what is wrong and where, and an exact way back."""

import sys

import pytest
from hypothesis import strategies as st

from pluralis.data import read, write
from pluralis.data.formats import parquet as module
from pluralis.errors import DataError, LabelError
from pluralis.labels import Labels
from tests.data.tables import for_all, make_images, tables

try:
    import pyarrow as pa
    from pyarrow import parquet
except ImportError:
    pa = None

needs_arrow = pytest.mark.skipif(pa is None, reason="pyarrow is not installed")


@pytest.fixture
def parse(tmp_path):
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (tmp_path / name).touch()

    def parse(columns, **options):
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        parquet.write_table(table, tmp_path / "labels.parquet")
        return read("parquet", tmp_path / "labels.parquet", images=tmp_path, **options)

    return parse


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "x.parquet").touch()
    for call in (
        lambda: read("parquet", tmp_path / "x.parquet", images=tmp_path),
        lambda: write("parquet", tmp_path / "y.parquet", Labels.from_lists([[0]], ["cat"])),
    ):
        with pytest.raises(DataError, match=r"needs pyarrow; install it with: pip install 'pluralis\[parquet\]'"):
            call()


@needs_arrow
def test_nulls_of_wide_files_are_unknown_whatever_is_stated(parse):
    stated = parse({"image": ["b.jpg", "a.jpg"], "cat": [1, None], "dog": [0, None]}, unlisted="absent")
    assert stated.labels.dense().tolist() == [[0, 0], [1, -1]]
    assert "labels.parquet: 2 blank cells are unknown" in stated.notes[0]


@needs_arrow
def test_the_index_of_a_data_frame_is_no_class(parse, tmp_path):
    for index in ([0, 1], ["x" * 10_000, None]):
        index = {"__index_level_0__": index, "__index_level_1__": index}
        wide = parse({**index, "image": ["b.jpg", "a.jpg"], "__index_level": [1, -1]}).labels
        assert (wide.classes, wide.dense().tolist()) == (("__index_level",), [[-1], [1]])
        assert parse({"image": ["b.jpg", "a.jpg"], "label": ["cat", "cat"], **index}).labels.classes == ("cat",)
    labels = Labels.from_lists([[0]], ["__index_level_0__"], ids=["a.jpg"])
    with pytest.raises(DataError, match=r"the name of a data frame's index.*write it long"):
        write("parquet", tmp_path / "out.parquet", labels, layout="wide")
    write("parquet", tmp_path / "out.parquet", labels, layout="long")
    assert read("parquet", tmp_path / "out.parquet", images=tmp_path).labels == labels


@needs_arrow
def test_long(parse):
    columns = {"image": ["c.jpg", "a.jpg", "a.jpg", "b.jpg"], "label": ["dog", "cat", "dog", None]}
    assert parse(columns).labels.dense().tolist() == [[1, 1], [0, 0], [0, 1]]
    valued = parse({**columns, "value": [1, -1, 1, None]})
    assert valued.labels.ids == ("a.jpg", "b.jpg", "c.jpg")
    assert valued.labels.classes == ("cat", "dog")
    assert valued.labels.dense().tolist() == [[-1, 1], [0, 0], [0, 1]]
    moved = {"value": [1.0, -1.0, 1.0, None], **columns}
    assert parse(moved).labels == valued.labels
    assert parse(columns, unlisted="absent").labels.dense().tolist() == [[1, 1], [-1, -1], [-1, 1]]
    assert parse(columns, classes=["eel", "dog", "cat"]).labels.dense().tolist() == [[0, 1, 1], [0, 0, 0], [0, 1, 0]]


@needs_arrow
def test_dictionaries(parse):
    """As data frames write categories; those that no row has are no classes."""
    label = pa.DictionaryArray.from_arrays(pa.array([2, None, 0]), ["dog", "unused", "cat"])
    image = pa.array(["b.jpg", "c.jpg", "a.jpg"]).dictionary_encode()
    labels = parse({"image": image, "label": label}).labels
    assert labels.classes == ("cat", "dog")
    assert labels.dense().tolist() == [[0, 1], [1, 0], [0, 0]]


@needs_arrow
def test_mistakes_in_dictionaries_are_told_in_the_order_of_the_rows(parse):
    image = pa.DictionaryArray.from_arrays(pa.array([1, 0]), ["../one.jpg", "../two.jpg"])
    with pytest.raises(DataError, match=r"row 1: entry '\.\./two\.jpg' is refused"):
        parse({"image": image, "label": ["dog", "cat"]})


@needs_arrow
@pytest.mark.parametrize("batch", [1, 4, 1000])
def test_wide(parse, monkeypatch, batch):
    monkeypatch.setattr(module, "_CELLS", batch)
    nothing = pa.nulls(3)
    data = parse({"image": ["c.jpg", "a.jpg", "b.jpg"], "dog": [1, None, -1], "cat": [None, 1.0, None], "eel": nothing})
    assert data.labels.classes == ("dog", "cat", "eel")
    assert data.labels.dense().tolist() == [[0, 1, 0], [-1, 0, 0], [1, 0, 0]]


@needs_arrow
@pytest.mark.parametrize("zero", [0, 0.0, False])
def test_zero_means_what_is_stated(parse, zero):
    columns = {"image": ["a.jpg", "b.jpg"], "dog": [type(zero)(1), zero]}
    with pytest.raises(DataError, match="row 2: a value of 0 can mean two things; say unlisted="):
        parse(columns)
    assert parse(columns, unlisted="unknown").labels.dense().tolist() == [[1], [0]]
    assert parse(columns, unlisted="absent").labels.dense().tolist() == [[1], [-1]]


def long(image=("a.jpg", "b.jpg"), label=("dog", "cat"), value=(1, -1)):
    return {"image": list(image), "label": list(label), "value": list(value)}


MISTAKES = {
    "no image column": ({"file": ["a.jpg"], "label": ["dog"]}, "the columns are 'file', 'label'; give 'image'"),
    "only images": ({"image": ["a.jpg"]}, "wants a column for each class"),
    "a class without a name": ({"image": ["a.jpg"], "": [1]}, "wants a column for each class"),
    "white space": ({"image": ["a.jpg"], "dog ": [1]}, "parquet: the name 'dog ' begins or ends with white space"),
    "images as numbers": (long(image=[1, 2]), "the column 'image' holds int64; give texts"),
    "labels as bytes": (long(label=[b"dog", b"cat"]), "the column 'label' holds binary; give texts"),
    "values as texts": (long(value=["1", "-1"]), "the column 'value' holds string; give numbers"),
    "values as lists": ({"image": ["a.jpg"], "dog": [[1]]}, "the column 'dog' holds list"),
    "null image": (long(image=["a.jpg", None]), "row 2: the image is null"),
    "null image, wide": ({"image": ["a.jpg", None], "dog": [1, 1]}, "row 2: the image is null"),
    "all images null": ({"image": [None], "dog": [1]}, "row 1: the image is null"),
    "null value": (long(value=[1, None]), "row 2: the value is null"),
    "no label": (long(label=["dog", None]), "row 2: the value has no label"),
    "empty label": (long(label=["dog", ""]), "row 2: the label is an empty text"),
    "two": (long(value=[1, 2]), "row 2: column 'value': the value 2 is no label"),
    "nan": (long(value=[1.0, float("nan")]), "row 2: column 'value': the value nan is no label"),
    "large": ({"image": ["a.jpg"], "dog": [2**63 - 1]}, "row 1: column 'dog': the value 9223372036854775807"),
    "pair twice": (long(["a.jpg"] * 2, ["dog"] * 2), "row 2: image 'a.jpg', class 'dog': given as 1 and as -1, see"),
    "image twice": ({"image": ["b.jpg", "a.jpg", "./b.jpg"], "dog": [1, 1, 1]}, "row 3: image './b.jpg' is in row 1"),
    "no label twice": (long(["a.jpg"] * 2, [None] * 2, [None] * 2), "row 2: image 'a.jpg' without a label: row 1"),
    "outside": (long(image=["a.jpg", "../x.jpg"]), "row 2: entry '../x.jpg' is refused"),
    "missing": (long(image=["a.jpg", "d.jpg"]), "1 of the listed images are missing"),
    "no row": (long((), (), ()), "there is no class in the file"),
}


@needs_arrow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(parse, mistake):
    columns, words = MISTAKES[mistake]
    with pytest.raises(DataError, match=words) as caught:
        parse(columns)
    assert "labels.parquet" in str(caught.value)
    assert "\n" not in str(caught.value)


@needs_arrow
def test_rows_are_counted_through_the_file(parse, monkeypatch):
    monkeypatch.setattr(module, "_CELLS", 3)
    for columns in (long(["a.jpg"] * 5, [*"abcde"], [1, 1, 1, 1, 7]), {"image": [*"abcde"], "dog": [1, 1, 1, 1, 7]}):
        with pytest.raises(DataError, match="row 5: column .*: the value 7 is no label"):
            parse(columns)


@needs_arrow
def test_rows_that_repeat_are_refused_before_all_are_read(parse, monkeypatch):
    """A few bytes can stand for a million equal rows: they are not gathered first."""
    monkeypatch.setattr(module, "_CELLS", 1 << 12)
    read_on = []
    plain = module.read_batches
    monkeypatch.setattr(module, "read_batches", lambda *given: (read_on.append(1) or part for part in plain(*given)))
    with pytest.raises(DataError, match="row 2: image 'a.jpg', class 'dog': given twice, see row 1"):
        parse(long(["a.jpg"] * 1_000_000, ["dog"] * 1_000_000, [1] * 1_000_000))
    assert len(read_on) == 1


@needs_arrow
@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
def test_names_that_are_too_long(parse, column, packed):
    cells = [["a.jpg"] * 3, ["dog", "cat", "owl"]]
    cells[column][1] = "x" * 5000
    table = pa.table(long(*cells, [1, 1, 1]))
    if packed:
        table = table.set_column(column, table.schema[column].name, table.column(column).dictionary_encode())
    with pytest.raises(DataError, match="a name in the column '(image|label)' is over 4,096 bytes"):
        parse(table)


@needs_arrow
def test_a_name_of_many_megabytes_is_refused_by_the_header(parse, monkeypatch):
    monkeypatch.setattr(module, "read_batches", None)  # nothing is unpacked
    with pytest.raises(DataError, match=r"1 of its rows take [0-9,]+ bytes; .* names that are too long"):
        parse(long(["a.jpg"], ["x" * (8 << 20)], [1]))


@needs_arrow
def test_other_mistakes(parse, tmp_path):
    with pytest.raises(DataError, match="row 2: there is no class 'cat'; .*'cta'"):
        parse(long(), classes=["dog", "cta"])
    note = {b"pluralis.classes": b'["dog", "dog"]'}
    with pytest.raises(DataError, match=r"labels\.parquet: its note of the classes"):
        parse(pa.table(long()).replace_schema_metadata(note))
    for path in (tmp_path, tmp_path / "no.parquet"):
        with pytest.raises(DataError, match="is not there, or not a plain file"):
            read("parquet", path, images=tmp_path)
    for classes in (["image"], ["label"], ["value", "label"]):
        with pytest.raises(DataError, match="read as columns of a long file; write it long"):
            write("parquet", tmp_path / "out.parquet", Labels.from_lists([[0]], classes), layout="wide")


@needs_arrow
@pytest.mark.parametrize("layout", ["long", "wide"])
@pytest.mark.parametrize("examples", [50, pytest.param(2_000, marks=pytest.mark.slow)])
def test_round_trip(tmp_path, monkeypatch, layout, examples):
    folder, path = make_images(tmp_path / "images"), tmp_path / "out.parquet"
    monkeypatch.setattr(module, "_CELLS", 32)  # several blocks

    def check(data):
        write("parquet", path, data, layout=layout)
        classes = None if layout == "long" else list(data.labels.classes)
        again = read("parquet", path, images=folder, classes=classes)
        assert again.labels == data.labels
        assert again.images == data.images

    names = ["null", "é", "a,b", "=1"] if layout == "wide" else ["image", "label", "value", "null"]
    drawn = tables(folder, names=names)
    if layout == "wide":
        drawn = drawn.filter(lambda data: not {"image", "label"} & set(data.labels.classes))
    for_all(drawn, check, examples)


@needs_arrow
@pytest.mark.parametrize("examples", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_damaged_files_raise_only_documented_errors(parse, tmp_path, examples):
    parse({"image": ["a.jpg", "b.jpg", "c.jpg"], "label": ["dog", None, "cat"], "value": [1, None, -1]})
    good, path = (tmp_path / "labels.parquet").read_bytes(), tmp_path / "any.parquet"

    def check(drawn):
        place, noise = drawn
        written = bytearray(good)
        written[place : place + len(noise)] = noise
        path.write_bytes(bytes(written))
        message = "any.parquet"
        try:
            read("parquet", path, images=tmp_path)
        except (DataError, LabelError) as error:
            message = str(error)
        assert "any.parquet" in message
        assert "\n" not in message

    for_all(st.tuples(st.integers(0, len(good)), st.binary(min_size=1, max_size=4)), check, examples)
