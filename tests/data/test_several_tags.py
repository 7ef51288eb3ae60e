"""Several tags in one cell of a CSV file: read as labels of their own where that is asked for, else told."""

import csv as stdlib_csv
import doctest
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pluralis.data.formats import csv, read, several_tags, write
from pluralis.data.formats.several_tags import tags_note
from pluralis.errors import DataError
from tests.data_command import pluralis


@pytest.fixture
def parse(tmp_path):
    """Labels of the empty files a.jpg, b.jpg and c.jpg."""
    for name in "abc":
        (tmp_path / f"{name}.jpg").touch()

    def parse(text, **options):
        path = tmp_path / "labels.csv"
        path.write_text(text, newline="")
        return read("csv", path, images=tmp_path, **options)

    return parse


def lists(found):
    """{image: the names of its present classes}."""
    dense, classes = found.labels.dense(), found.labels.classes
    present = ([c for c, v in zip(classes, row, strict=True) if v > 0] for row in dense)
    return dict(zip("abc", present, strict=False))


@pytest.mark.parametrize("sign", [",", ";", "|", "/", "&&", "\n"])
def test_a_cell_may_hold_several_tags(parse, sign):
    found = parse(f'image,label\nb.jpg,"person{sign} traffic light "\na.jpg,"{sign}dog"\nc.jpg,dog\n', several=sign)
    assert lists(found) == {"a": ["dog"], "b": ["person", "traffic light"], "c": ["dog"]}
    assert found.labels.classes == ("dog", "person", "traffic light")
    assert found.notes == ()


def test_the_sign_is_meant_without_the_blanks_around_it(parse):
    text = 'image,label\na.jpg,"sea,boat , sky"\n'
    assert lists(parse(text, several=", ")) == lists(parse(text, several=",")) == {"a": ["boat", "sea", "sky"]}
    assert lists(parse("image,label\na.jpg, sea  boat \n", several=" ")) == {"a": ["boat", "sea"]}
    assert lists(parse("image,label\na.jpg,band and sand\n", several=" and ")) == {"a": ["band", "sand"]}


@pytest.mark.parametrize("several", ["tab", "\t"])
def test_tabs_are_named_as_those_between_cells(parse, several):
    assert lists(parse("image,label\na.jpg,sea\tboat\n", several=several)) == {"a": ["boat", "sea"]}


@pytest.mark.parametrize(("separator", "mark"), [(",", ","), (";", ";"), ("|", "|"), ("tab", "\t")])
def test_the_separator_of_the_file_may_stand_between_tags_in_quotes(parse, separator, mark):
    text = f'image,label\na.jpg,"sea{mark}""big"" boat"\nb.jpg,sea\n'.replace(",", mark)
    found = parse(text, separator=separator, several=separator)
    assert lists(found) == {"a": ['"big" boat', "sea"], "b": ["sea"]}
    with pytest.raises(DataError, match="line 2: 3 cells under a header of 2; quote cells"):
        parse(text.replace('"', ""), separator=separator, several=separator)


def test_empty_parts_are_no_tags_and_a_cell_of_nothing_else_is_empty(parse):
    found = parse('image,label\na.jpg,"sea,, boat,"\nb.jpg,", ,"\nc.jpg,\n', several=",")
    assert lists(found) == {"a": ["boat", "sea"], "b": [], "c": []}


def test_a_value_holds_for_all_tags_of_its_line(parse):
    found = parse('image,label,value\na.jpg,"sea,boat",-1\na.jpg,sky,1\nb.jpg,"sky,,sea,",1\nc.jpg,,\n', several=",")
    assert found.labels.classes == ("boat", "sea", "sky")
    assert found.labels.dense().tolist() == [[-1, -1, 1], [0, 1, 1], [0, 0, 0]]
    complete = parse('image,label\na.jpg,"sea,boat"\nb.jpg,\n', several=",", unlisted="absent")
    assert complete.labels.dense().tolist() == [[1, 1], [-1, -1]]


def test_a_tag_twice_in_a_cell_counts_once_and_is_told(parse):
    found = parse('image,label\nb.jpg,sea\na.jpg,"sea, boat, sea"\n', several=",")
    assert lists(found) == {"a": ["boat", "sea"], "b": ["sea"]}
    assert "1 labels are given again, such as image 'a.jpg', class 'sea' (line 3); each counts once" in found.notes[0]
    found = parse('image,label\na.jpg,sea\na.jpg,"boat, sea"\n', several=",")
    assert "class 'sea' (lines 2 and 3)" in found.notes[0]


MISTAKES = {
    "wide": ("image,sea\na.jpg,1\n", {"several": ";"}, "line 1: several=';' is about .* begin with .* image,label, or"),
    "too few cells": ("image,label\na.jpg\n", {"several": ","}, r"line 2: 1 cells under a header of 2"),
    "a value alone": ('image,label,value\na.jpg,",",1\n', {"several": ","}, r"line 2: the value '1' has no label"),
    "no such class": (
        'image,label\na.jpg,"sea, baot"\n',
        {"several": ",", "classes": ["sea", "boat"]},
        r"line 2: there is no class 'baot'; did you mean 'boat'",
    ),
    "two things said": (
        'image,label,value\na.jpg,"sea,boat",1\na.jpg,boat,-1\n',
        {"several": ","},
        r"line 3: image 'a.jpg', class 'boat': given as 1 and as -1, see line 2",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(parse, mistake):
    text, options, words = MISTAKES[mistake]
    with pytest.raises(DataError, match=words):
        parse(text, **options)


def test_names_like_formulas_come_back(parse, tmp_path):
    """Also with the option: the quote that the writer puts before a cell belongs to its only tag."""
    found = parse("image,label\na.jpg,'=1 | +x | ''-y\n", several="|")
    assert lists(found) == {"a": ["'-y", "+x", "=1"]}
    write("csv", tmp_path / "again.csv", found, images=tmp_path)
    assert read("csv", tmp_path / "again.csv", images=tmp_path, several="|").labels == found.labels


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_was_joined_is_parted_and_comes_back(tmp_path_factory, data):
    folder, sign = tmp_path_factory.getbasetemp(), data.draw(st.sampled_from([",", ";", "|", "/", " - "]))
    tag = st.text("aé日\"'=|,;/ ", min_size=1, max_size=4).filter(lambda tag: tag == tag.strip() and sign not in tag)
    rows = data.draw(st.lists(st.lists(tag, unique=True, max_size=4), min_size=1, max_size=3).filter(any))
    text = io.StringIO()
    lines = stdlib_csv.writer(text)
    lines.writerow(["image", "label"])
    for name, tags in zip("abc", rows, strict=False):
        (folder / f"{name}.jpg").touch()
        lines.writerow([f"{name}.jpg", f" {sign} ".join(map(csv.neutralise, tags))])
    (folder / "tags.csv").write_text(text.getvalue(), newline="")
    found = read("csv", folder / "tags.csv", images=folder, several=sign)
    assert found.labels.classes == tuple(sorted({tag for tags in rows for tag in tags}))
    assert lists(found) == {name: sorted(tags) for name, tags in zip("abc", rows, strict=False)}
    write("csv", folder / "one.csv", found, images=folder)
    assert read("csv", folder / "one.csv", images=folder).labels == found.labels


@pytest.mark.parametrize("sign", [",", ";", "|", "/"])
def test_names_made_of_other_names_are_told(sign):
    note = tags_note(["Boat", f"Sea {sign} boat", "salt", f"salt{sign}pepper", "sea"])
    assert note.startswith(f"1 class looks like several tags in one cell: 'Sea {sign} boat'; ")
    assert f"--set 'data.options.several={sign}'" in note


def test_the_sign_that_explains_most_names_is_told():
    names = ["a", "b", "c", "a/b", "a, b", "b, c", "a, b, c", "a,,c"]
    assert tags_note(names).startswith("4 classes look like several tags in one cell, such as 'a, b'; ")
    assert "several=,'" in tags_note(names)


@pytest.mark.parametrize(
    "names",
    [
        ["salt, pepper", "salt", "car/truck", "truck"],
        ["a", "a,", ",a", ",", "/"],
        ["sea boat", "sea", "boat"],
        ["sea, boat/sky", "sea", "boat", "sky"],  # no one sign parts it
        [],
    ],
)
def test_no_alarm_where_a_part_is_no_class(names):
    assert tags_note(names) == ""


def test_the_note_is_of_long_files_for_which_nothing_was_stated(parse):
    text = 'image,label\na.jpg,"sea, boat"\nb.jpg,sea\nc.jpg,boat\nc.jpg,boat\n'
    again, note = parse(text).notes
    assert "given again" in again
    assert note.endswith("labels.csv: " + tags_note(["sea, boat", "sea", "boat"]))
    assert len(parse(text, classes=["sea", "boat", "sea, boat"]).notes) == 1
    assert len(parse(text, several=";").notes) == 1
    assert len(parse(text, several="").notes) == 2
    assert parse('image,"sea, boat",sea,boat\na.jpg,1,1,1\n').notes == ()


def test_commands_tell_and_take_it(parse, tmp_path):
    parse('image,label\na.jpg,"sea, boat"\nb.jpg,sea\nc.jpg,boat\n')
    given = ["--images", tmp_path, "--labels", tmp_path / "labels.csv"]
    said = pluralis("inspect", *given, "--no-files")
    assert "1 class looks like several tags in one cell: 'sea, boat'; --set 'data.options.several=,' makes" in said
    assert "3 images × 3 classes" in said
    said = pluralis("inspect", *given, "--no-files", "--set", "data.options.several=,")
    assert "several tags" not in said
    assert "3 images × 2 classes" in said
    off = pluralis("inspect", *given, "--no-files", "--set", "data.options.several=,", "--set", "data.options.several=")
    assert "3 images × 3 classes" in off
    pluralis("convert", *given, "--set", "data.options.several=,", "--out", tmp_path / "good.csv")
    good = read("csv", tmp_path / "good.csv", images=tmp_path)
    assert lists(good) == {"a": ["boat", "sea"], "b": ["sea"], "c": ["boat"]}


def test_examples():
    assert doctest.testmod(several_tags) == (0, 2)
