"""JSON lines: what they mean, what is wrong and where, and an exact way back."""

import json

import pytest
from hypothesis import strategies as st

from pluralis.data import read, write
from pluralis.data.formats import jsonl
from pluralis.errors import DataError, LabelError
from pluralis.labels import Labels
from tests.data.tables import for_all, make_images, tables


@pytest.fixture
def parse(tmp_path):
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (tmp_path / name).touch()

    def parse(*lines, **options):
        written = b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines)
        (tmp_path / "labels.jsonl").write_bytes(written)
        return read("jsonl", tmp_path / "labels.jsonl", images=tmp_path, **options)

    return parse


def test_both_shapes(parse):
    data = parse(
        '{"image": "c.jpg", "positives": ["dog"], "negatives": ["car"]}',
        "",
        '{"image": "a.jpg", "labels": {"dog": 1, "car": -1.0, "eel": null}}',
        '{"image": "b.jpg"}',
    )
    assert data.labels.ids == ("a.jpg", "b.jpg", "c.jpg")
    assert data.labels.classes == ("car", "dog", "eel")
    assert data.labels.dense().tolist() == [[-1, 1, 0], [0, 0, 0], [-1, 1, 0]]
    assert [path.name for path in data.images] == ["a.jpg", "b.jpg", "c.jpg"]


def test_what_is_not_listed(parse):
    lines = '{"image": "a.jpg", "labels": {"dog": 1, "car": null}}', '{"image": "b.jpg", "positives": ["eel"]}'
    assert parse(*lines).labels.dense().tolist() == [[0, 1, 0], [0, 0, 1]]
    assert parse(*lines, unlisted="absent").labels.dense().tolist() == [[0, 1, -1], [-1, -1, 1]]
    zero = '{"image": "a.jpg", "labels": {"dog": 0, "car": 1}}'
    with pytest.raises(DataError, match=r"line 1: a value of 0.*unlisted='unknown'"):
        parse(zero)
    assert parse(zero, unlisted="unknown").labels.dense().tolist() == [[1, 0]]
    assert parse(zero, unlisted="absent").labels.dense().tolist() == [[1, -1]]


def test_classes_and_other_keys(parse):
    lines = '{"classes": ["eel", "dog"]}', '{"image": "a.jpg", "positives": ["dog"]}'
    assert parse(*lines).labels.classes == ("eel", "dog")
    assert parse(*lines, classes=["dog", "cat"]).labels.classes == ("dog", "cat")
    wider = '{"image": "a.jpg", "positives": ["dog"], "width": 3}'
    with pytest.raises(DataError, match="line 1: there is no key 'width'.*extra='ignore'"):
        parse(wider)
    assert parse(wider, extra="ignore").labels.dense().tolist() == [[1]]
    with pytest.raises(DataError, match="extra='no' is not possible"):
        parse(wider, extra="no")


GOOD = '{"image": "a.jpg", "positives": ["dog"]}'
MISTAKES = {
    "empty": ("", "there is no class in the file"),
    "not JSON": ("{'image': 1}", "line 2: Expecting property name"),
    "two objects": ('{"image": "b.jpg"} {}', "line 2: Extra data"),
    "no object": ('["b.jpg"]', r"line 2: \['b.jpg'\] is not an object"),
    "a number": ("7", "line 2: 7 is not an object"),
    "no image": ('{"positives": ["dog"]}', "line 2: .*'image'; name the image file"),
    "image as a number": ('{"image": 3}', "line 2: there is no text under the key 'image'"),
    "classes too late": ('{"classes": ["dog"]}', "line 2: there is no text under the key 'image'"),
    "key twice": ('{"image": "b.jpg", "image": "c.jpg"}', "line 2: the key 'image' is given twice"),
    "class twice": ('{"image": "b.jpg", "labels": {"dog": 1, "dog": -1}}', "line 2: the key 'dog' is given twice"),
    "image twice": (GOOD, "line 2: image 'a.jpg' is in line 1 already"),
    "two spellings": ('{"image": "./a.jpg"}', "line 2: image './a.jpg' is in line 1 already"),
    "a class in both lists": (
        '{"image": "b.jpg", "positives": ["dog"], "negatives": ["dog"]}',
        "line 2: image 'b.jpg', class 'dog': given as 1 and as -1",
    ),
    "both shapes": ('{"image": "b.jpg", "labels": {}, "positives": []}', "line 2: labels and positives .*two shapes"),
    "misspelt": ('{"image": "b.jpg", "postives": []}', "line 2: .*'postives'; did you mean 'positives'"),
    "NaN": ('{"image": "b.jpg", "labels": {"dog": NaN}}', "line 2: NaN is no number"),
    "endless": ('{"image": "b.jpg", "labels": {"dog": 1e999}}', r"line 2: labels\['dog'\] is inf"),
    "many digits": ('{"image": "b.jpg", "labels": {"dog": %s}}' % ("9" * 5000), "line 2: .*digits"),
    "large": ('{"image": "b.jpg", "labels": {"dog": %s}}' % ("9" * 4000), "line 2: .*99…; write 1"),
    "true": ('{"image": "b.jpg", "labels": {"dog": true}}', "line 2: .* is True; write 1 present or -1 absent"),
    "a text": ('{"image": "b.jpg", "labels": {"dog": "1"}}', "line 2: .* is '1'; write"),
    "deep list": ("[" * 100_000, "line 2: .*recursion"),
    "deep object": ('{"a":' * 100_000, "line 2: .*recursion"),
    "labels as a list": ('{"image": "b.jpg", "labels": ["dog"]}', r"line 2: labels is \['dog'\]"),
    "positives as a text": ('{"image": "b.jpg", "positives": "dog"}', "line 2: positives is 'dog'; give a list"),
    "a class that is none": ('{"image": "b.jpg", "positives": [["dog"]]}', r"line 2: positives holds \['dog'\]"),
    "an empty class": ('{"image": "b.jpg", "labels": {"": 1}}', "line 2: labels holds ''"),
    "white space": ('{"image": "b.jpg", "positives": ["dog "]}', "line 2: .*white space"),
    "not UTF-8": (b'{"image": "\xff.jpg"}', "line 2: .*utf-8"),
    "outside": ('{"image": "../b.jpg"}', r"line 2: entry '../b.jpg' is refused"),
    "a NUL": ('{"image": "b\\u0000.jpg"}', "line 2: .*NUL"),
    "half a character": ('{"image": "\\ud800.jpg"}', "line 2: a text in it holds half a character"),
    "half a class": ('{"image": "a.jpg", "labels": {"\\ud800": 1}}', "line 2: a text in it holds half a character"),
    "half a list": ('{"image": "a.jpg", "positives": ["x\\udfff"]}', "line 2: a text in it holds half a character"),
    "missing": ('{"image": "d.jpg"}', "1 of the listed images are missing"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(parse, mistake):
    line, words = MISTAKES[mistake]
    with pytest.raises(DataError, match=words) as caught:
        parse(*((GOOD, line) if line else ("",)))
    assert "labels.jsonl" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_values_nested_almost_too_deeply(parse):
    for depth in range(700, 1000, 7):  # some of these parse, and must then be shown
        with pytest.raises(DataError, match="line 1"):
            parse('{"image": "a.jpg", "labels": {"dog": %s}}' % ("[" * depth + "]" * depth))


def test_files_that_are_none(parse, tmp_path, monkeypatch):
    for path in (tmp_path, tmp_path / "no.jsonl"):
        with pytest.raises(DataError, match="is not there, or not a plain file"):
            read("jsonl", path, images=tmp_path)
    assert jsonl.MAX_LINE == 16 << 20  # as objects they may take some thirty times that
    monkeypatch.setattr(jsonl, "MAX_LINE", 50)
    with pytest.raises(DataError, match="line 2: over the limit of 50 bytes"):
        parse(GOOD, '{"image": "b.jpg", "positives": ["' + "x" * 50)


@pytest.mark.parametrize("examples", [100, pytest.param(2_000, marks=pytest.mark.slow)])
def test_round_trip(tmp_path, examples):
    folder, path = make_images(tmp_path / "images"), tmp_path / "out.jsonl"

    def check(data):
        write("jsonl", path, data)
        again = read("jsonl", path, images=folder)
        assert again.labels == data.labels
        assert again.images == data.images
        for line in path.read_bytes().splitlines():
            json.loads(line)

    for_all(tables(folder), check, examples)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text("old")
    with pytest.raises(DataError, match=r"out\.jsonl: cannot be written"):
        write("jsonl", path, Labels.from_lists([[0]], ["\ud800"]))
    assert [p.name for p in tmp_path.iterdir()] == ["out.jsonl"]
    assert path.read_text() == "old"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([0, 1, -1, "dog", "", "a.jpg"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["dog", "car", " x"]), inner),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from(["image", "labels", "positives", "negatives", "classes", "x"]), VALUES)
LINES = (OBJECTS | VALUES).map(json.dumps).map(str.encode) | st.binary(max_size=30)


@pytest.mark.parametrize("examples", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_generated_files_raise_only_documented_errors(tmp_path, examples):
    (tmp_path / "a.jpg").touch()

    def check(drawn):
        lines, options = drawn
        (tmp_path / "any.jsonl").write_bytes(b"\n".join(lines))
        message = "any.jsonl"
        try:
            data = read("jsonl", tmp_path / "any.jsonl", images=tmp_path, **options)
            assert data.labels.ids in ((), ("a.jpg",))
        except (DataError, LabelError) as error:
            message = str(error)
        assert "any.jsonl" in message
        assert "\n" not in message

    first = st.just(b'{"image": "a.jpg", "labels": {"dog": 1}}')
    options = st.fixed_dictionaries(
        {"unlisted": st.sampled_from([None, "absent", "unknown"]), "extra": st.sampled_from(["refuse", "ignore"])}
    )
    for_all(st.tuples(st.lists(first | LINES, max_size=4), options), check, examples)
