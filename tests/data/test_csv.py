"""CSV in both shapes: what it means, what is wrong and where, and an exact way back."""

import csv as stdlib_csv
import os
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pluralis.data import write as public_write
from pluralis.data.formats import FORMATS, Dataset, csv, csv_records, read
from pluralis.data.formats.csv import write
from pluralis.data.formats.table import Table
from pluralis.errors import DataError, LabelError
from pluralis.labels import Labels
from tests.data.tables import for_all, make_images, tables


@pytest.fixture
def folder(tmp_path):
    """Three image files (nothing decodes them here), one in a folder of its own."""
    root = tmp_path / "photos"
    (root / "sub").mkdir(parents=True)
    for name in ("a.jpg", "b.jpg", "sub/c.jpg"):
        (root / name).touch()
    return root


@pytest.fixture
def parse(folder):
    def parse(text, **options):
        path = folder.parent / "labels.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read("csv", path, images=folder, **options)

    return parse


def test_long_without_values(parse, folder):
    data = parse("image,label\nsub/c.jpg,dog\nb.jpg,\na.jpg,dog\na.jpg,cat\n")
    assert data.labels.ids == ("a.jpg", "b.jpg", "sub/c.jpg")
    assert data.labels.classes == ("cat", "dog")
    assert data.labels.dense().tolist() == [[1, 1], [0, 0], [0, 1]]
    assert data.images == [folder.resolve() / name for name in data.labels.ids]
    assert len(data) == 3


def test_long_with_values(parse):
    data = parse("image,label,value\nb.jpg,dog,-1\na.jpg,dog,1\na.jpg,cat,-1.0\nsub/c.jpg,,\n")
    assert data.labels.dense().tolist() == [[-1, 1], [0, -1], [0, 0]]


def listing(layout, names):
    """A file that has all names, of the class dog."""
    return f"image,{layout}\n" + "".join(f"{name},{'dog' if layout == 'label' else '1'}\n" for name in names)


@pytest.mark.parametrize("layout", ["label", "dog"])
def test_links_that_lead_outside_are_told_by_their_line(parse, folder, layout):
    """Of several the first in the file, though images are sorted before their files are looked for."""
    (folder.parent / "secret.jpg").touch()
    for name in ("0.jpg", "z.jpg"):
        (folder / name).symlink_to("../secret.jpg")
    with pytest.raises(DataError, match=r"labels\.csv, line 4: entry 'z\.jpg' is refused: it leads outside"):
        parse(listing(layout, ["b.jpg", "a.jpg", "z.jpg", "sub/c.jpg", "0.jpg"]))


@pytest.mark.parametrize("layout", ["label", "dog"])
@pytest.mark.parametrize("tail", ["x" * 300, "é" * 128, ".."])
def test_names_that_no_file_can_have_are_refused_at_their_line(parse, layout, tail):
    """Before any later line, and as the file spells them."""
    with pytest.raises(DataError, match=rf"labels\.csv, line 3: entry './/sub/{tail[0]}.* is refused: "):
        parse(listing(layout, ["b.jpg", f".//sub/{tail}", "../a.jpg"]))


@pytest.mark.parametrize("layout", ["label", "dog"])
def test_missing_files_are_told_in_the_order_of_the_file(parse, layout):
    with pytest.raises(DataError, match=r"3 of the listed images are missing: '.*/z\.jpg', '.*/1\.jpg', '.*/0\.jpg'"):
        parse(listing(layout, ["z.jpg", "a.jpg", "1.jpg", "0.jpg"]))


def test_wide(parse):
    data = parse("image,dog,cat\nb.jpg,1,\na.jpg,-1,1.0\nsub/c.jpg,, \n")
    assert data.labels.classes == ("dog", "cat")
    assert data.labels.dense().tolist() == [[-1, 1], [1, 0], [0, 0]]
    moved = parse("dog,image,cat\n1,b.jpg,\n-1,a.jpg,1.0\n,sub/c.jpg, \n")
    assert moved.labels == data.labels


@pytest.mark.parametrize(
    "text", ["image,dog,cat\na.jpg,1,-1\n", "dog,image,cat\n1,a.jpg,-1\n", '\n"image",dog,cat\na.jpg,1,-1']
)
def test_a_file_that_is_replaced_while_it_is_read_is_the_old_one(parse, folder, monkeypatch, text):
    """Header and rows come from one open file: the new one has the same labels in swapped columns."""
    opened = csv_records.open_text

    def replaced(path, **options):
        file = opened(path, **options)
        new = folder / "new.csv"
        new.write_text("image,cat,dog\na.jpg,-1,1\n")
        os.replace(new, path)
        return file

    monkeypatch.setattr(csv_records, "open_text", replaced)
    found = parse(text).labels
    assert found.classes == ("dog", "cat")
    assert found.dense().tolist() == [[1, -1]]


def test_lines_are_counted_below_a_header_of_several_lines(parse):
    with pytest.raises(DataError, match=r"line 5: column 'd\\nog': the value 'x' is no label"):
        parse('\nimage,"d\nog",cat\na.jpg,1,1\nb.jpg,x,1\n')
    with pytest.raises(DataError, match=r"line 5: column 'd\\nog': the value 'x' is no label"):
        parse('\n"d\nog",image,cat\n1,a.jpg,1\nx,b.jpg,1\n')


def test_quotes_before_formulas_go_in_wide_headers_too(parse):
    assert parse("image,'=x,'y\na.jpg,1,-1\n").labels.classes == ("=x", "'y")


def test_blank_cells_of_wide_files_are_unknown_whatever_is_stated(parse):
    """They say so themselves: `unlisted` is about zeros. Who wants them absent is told."""
    text = "image,dog,cat\na.jpg,1,\nb.jpg,,0\nsub/c.jpg,,1\n"
    stated = parse(text, unlisted="absent")
    assert stated.labels.dense().tolist() == [[1, 0], [0, -1], [0, 1]]
    assert len(stated.notes) == 1
    assert "labels.csv: 3 blank cells are unknown; unlisted='absent' is about zeros" in stated.notes[0]
    assert parse(text, unlisted="unknown").notes == ()
    assert parse("image,dog\na.jpg,1\nb.jpg,0\n", unlisted="absent").notes == ()


@pytest.mark.parametrize(("separator", "mark"), [(";", ";"), ("tab", "\t"), ("\t", "\t"), ("|", "|")])
def test_separators(parse, separator, mark):
    for text in ("image,label\nb.jpg,dog\na.jpg,cat\n", 'image,dog,cat\nb.jpg,1,"0"\na.jpg,0,1\n'):
        labels = parse(text.replace(",", mark), separator=separator, unlisted="unknown").labels
        assert labels == parse(text, unlisted="unknown").labels
    assert parse(f"image{mark}label\na.jpg{mark}salt, pepper\n", separator=separator).labels.classes == (
        "salt, pepper",
    )
    with pytest.raises(DataError, match="separator=':' is not possible; choose ',', ';', 'tab' or '|'"):
        parse("image:label\n", separator=":")


CELLS = ["0", "1", "-1", "", " ", "1.0", '"1"', '"0"']


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_lines_of_one_character_cells_mean_what_all_others_do(tmp_path_factory, data):
    """Whatever stands between them, and at whatever line ends: with a blank in front no line takes the short way."""
    folder, ends = tmp_path_factory.getbasetemp(), st.sampled_from(["\n", "\r\n", "\r", "\n\n"])
    ids = ["x.jpg", "y.jpg", "z 1.jpg", "w,1.jpg"]
    rows = [data.draw(st.lists(st.sampled_from(CELLS), min_size=3, max_size=3)) for _ in ids]
    text, slow = "image,a,b,c\n", "image,a,b,c\n"
    for name, cells in zip(ids, rows, strict=True):
        (folder / name).touch()
        quoted, end = f'"{name}"' if "," in name else name, data.draw(ends)
        text += ",".join([quoted, *cells]) + end
        slow += ",".join([quoted, *(cell if '"' in cell else f" {cell}" for cell in cells)]) + end
    found = []
    for content in (text, slow):
        (folder / "cells.csv").write_text(content, newline="")
        found.append(read("csv", folder / "cells.csv", images=folder, unlisted="absent"))
    meaning = {"0": -1, "1": 1, "-1": -1, "": 0, " ": 0, "1.0": 1, '"1"': 1, '"0"': -1}
    assert [found[0].labels.id(row) for row in range(4)] == sorted(ids)
    expected = {name: [meaning[cell] for cell in cells] for name, cells in zip(ids, rows, strict=True)}
    assert found[0].labels.dense().tolist() == [expected[name] for name in sorted(ids)]
    assert found[0].labels == found[1].labels


def test_lines_are_counted_among_one_character_cells(parse):
    text = 'image,a,b\na.jpg,1,1\n\n"b.jpg","1",1\n"no\n\nfile.jpg",1,\nsub/c.jpg,1,2\n'
    with pytest.raises(DataError, match=r"line 8: column 'b': the value '2'"):
        parse(text)
    with pytest.raises(DataError, match=r"line 8: image 'a.jpg' is in line 2 already"):
        parse(text.replace("sub/c.jpg,1,2", "a.jpg,1,1"))


def test_classes_fix_the_order(parse):
    data = parse("image,label\na.jpg,dog\n", classes=["eel", "dog", "cat"])
    assert data.labels.dense().tolist() == [[0, 1, 0]]
    data = parse("image,cat,dog\na.jpg,1,-1\n", classes=["eel", "dog", "cat"])
    assert data.labels.dense().tolist() == [[0, -1, 1]]


def test_zero_means_what_is_stated(parse):
    wide, long = "image,cat,dog,eel\na.jpg,0,1,\n", "image,label,value\na.jpg,cat,0\na.jpg,dog,1\nb.jpg,eel,1\n"
    for text in (wide, long):
        with pytest.raises(DataError, match=r"line 2: .*a value of 0.*unlisted='unknown'.*unlisted='absent'"):
            parse(text)
    assert parse(wide, unlisted="unknown").labels.dense().tolist() == [[0, 1, 0]]
    assert parse(wide, unlisted="absent").labels.dense().tolist() == [[-1, 1, 0]]
    assert parse(long, unlisted="unknown").labels.dense().tolist() == [[0, 1, 0], [0, 0, 1]]
    assert parse(long, unlisted="absent").labels.dense().tolist() == [[-1, 1, -1], [-1, -1, 1]]
    with pytest.raises(DataError, match="unlisted='maybe'"):
        parse(wide, unlisted="maybe")


def test_bom_line_ends_and_blank_lines(parse):
    plain = parse("image,label\na.jpg,süß\nb.jpg,süß\n").labels
    assert parse("\ufeffimage,label\r\n\r\na.jpg,süß\r\nb.jpg,süß".encode()).labels == plain
    assert parse('"image","label"\n"a.jpg","süß"\n\n./b.jpg,süß\n').labels == plain


MISTAKES = {
    "empty": ("", {}, r"labels\.csv: the file is empty"),
    "only blank lines": ("\n\n\n", {}, "the file is empty"),
    "only a mark": (b"\xef\xbb\xbf", {}, "the file is empty"),
    "no image column": ("file,label\na.jpg,cat\n", {}, "line 1: there is no column 'image'"),
    "no class column": ("image\na.jpg\n", {}, "line 1: the wide format wants"),
    "class column without a name": ("image,cat,\na.jpg,1,1\n", {}, "line 1: the wide format wants"),
    "class column twice": ("image,cat,cat\na.jpg,1,1\n", {}, "line 1: the wide format wants"),
    "no label at all": ("image,label\na.jpg,\n", {}, "there is no class in the file"),
    "unknown class, long": ("image,label\na.jpg,cta\n", {"classes": ["cat", "dog"]}, "line 2: .*'cta'.*mean 'cat'"),
    "unknown class, wide": ("image,dgo\na.jpg,1\n", {"classes": ["cat", "dog"]}, "line 1: .*'dgo'.*mean 'dog'"),
    "far from any class": ("image,label\na.jpg,xyz\n", {"classes": ["cat", "dog"]}, "choose from 'cat', 'dog'"),
    "image twice, wide": ("image,cat\na.jpg,1\nb.jpg,1\na.jpg,1\n", {}, "line 4: image 'a.jpg' is in line 2"),
    "two spellings, wide": ("image,cat\na.jpg,1\n./a.jpg,1\n", {}, "line 3: image './a.jpg' is in line 2"),
    "contradiction": (
        "image,label,value\na.jpg,cat,1\n\nb.jpg,cat,1\na.jpg,cat,-1\n",
        {},
        "line 5: image 'a.jpg', class 'cat': given as 1 and as -1, see line 2",
    ),
    "contradiction after a repetition": (
        "image,label,value\na.jpg,cat,1\na.jpg,cat,1\nb.jpg,cat,1\na.jpg,cat,-1\n",
        {},
        "line 5: image 'a.jpg', class 'cat': given as 1 and as -1, see line 3",
    ),
    "no label twice": ("image,label\na.jpg,\nb.jpg,cat\na.jpg,\n", {}, "line 4: image 'a.jpg' without a label: line 2"),
    "bad value, long": ("image,label,value\na.jpg,cat,yes\n", {}, "line 2: the value 'yes'"),
    "bad value, wide": ("image,cat\na.jpg,0.5\n", {}, "line 2: column 'cat': the value '0.5'"),
    "nan": ("image,cat\na.jpg,nan\n", {}, "line 2: column 'cat': the value 'nan'"),
    "bad character, wide": ("image,cat,dog\na.jpg,1,x\n", {}, "line 2: column 'dog': the value 'x'"),
    "zero, wide": (
        "image,cat,dog\na.jpg,1,0\n",
        {},
        "line 2: column 'dog': a value of 0 can mean two.*--unlisted unknown",
    ),
    "one-character cells, too many": ("image,cat\na.jpg,1,1\n", {}, "line 2: 3 cells under a header of 2"),
    "minus for a cell": ("image,cat,dog\na.jpg,1,-\n", {}, "line 2: column 'dog': the value '-'"),
    "minus among cells": ("image,cat,dog\na.jpg,-1,-\n", {}, "line 2: column 'dog': the value '-'"),
    "bad character after -1": ("image,cat,dog\na.jpg,-1,x\n", {}, "line 2: column 'dog': the value 'x'"),
    "bad number like -1": ("image,cat,dog\na.jpg,-11,1\n", {}, "line 2: column 'cat': the value '-11'"),
    "separators for cells": ("image,cat,dog\na.jpg,,,,\n", {}, "line 2: 5 cells under a header of 3"),
    "quote between one-character cells": (
        'image,cat,dog\na.jpg,1,1\n"a.jpg,1,1\n',
        {},
        "line 3: unexpected end of data",
    ),
    "semicolons": ("image;label\na.jpg;cat\n", {}, "line 1: there is no column 'image'; say separator=';'"),
    "quoted semicolons": ('"image";"label"\n"a.jpg";"cat"\n', {}, "line 1: .*say separator=';', or --set"),
    "quoted commas": ('"image","label"\n"a.jpg","cat"\n', {"separator": "|"}, "line 1: .*say separator=','"),
    "quotes in the header": ('"image","label"x\na.jpg,cat\n', {}, "line 1: .*check the quotes"),
    "quotes below quotes": ('"image","label"\n"a.jpg"s,"cat"\n', {}, "line 2: .*check the quotes"),
    "tabs": ("image\tcat\na.jpg\t1\n", {}, "line 1: .*say separator='tab'"),
    "commas after all": ("image,cat\na.jpg,1\n", {"separator": "|"}, "line 1: .*say separator=','"),
    "other columns, semicolons": ("file;x\na.jpg;1\n", {"separator": ";"}, "line 1: .*begin with the line image;label"),
    "backslashes": (
        "image,label\na.jpg,cat\nsub\\c.jpg,cat\n",
        {},
        r"1 of the listed .* write / instead of \\ between",
    ),
    "blank value": ("image,label,value\na.jpg,cat,\n", {}, "line 2: the value is blank"),
    "value without a label": ("image,label,value\na.jpg,,1\n", {}, "line 2: the value '1' has no label"),
    "too many cells": ("image,label\na.jpg,cat,1\n", {}, "line 2: 3 cells under a header of 2"),
    "too few cells": ("image,cat,dog\na.jpg,1\n", {}, "line 2: 2 cells under a header of 3"),
    "after a cell of two lines": ('image,label\na.jpg,"c\nat"\nb.jpg\n', {}, "line 4: 1 cells"),
    "within a record of two lines": ('image,label,value\na.jpg,"c\nat",2\n', {}, "line 2: the value '2'"),
    "missing images": (
        "image,label\n" + "".join(f"no{i}.jpg,cat\n" for i in range(5)) + "a.jpg,cat\n",
        {},
        r"5 of the listed images are missing: .*no0\.jpg', .*no1\.jpg', .*no2\.jpg', …",
    ),
    "a folder for an image": ("image,label\nsub,cat\n", {}, "1 of the listed images are missing"),
    "path to the outside": ("image,label\na.jpg,cat\n../labels.csv,cat\n", {}, r"line 3: entry '../labels\.csv'"),
    "absolute path": ("image,cat\n/etc/passwd,1\n", {}, "line 2: entry '/etc/passwd' is refused"),
    "no name": ("image,label\n,cat\n", {}, "line 2: entry '' is refused"),
    "open quote": ('image,label\na.jpg,"cat\nb.jpg,cat\n', {}, "line 2: unexpected end of data"),
    "quote in the middle": ('image,label\na.jpg,"cat"s\n', {}, "line 2: .*check the quotes"),
    "cell over the limit": ("image,label\na.jpg," + "x" * 200_000, {}, "line 2: field larger than field limit"),
    "not utf-8": (b"image,label\na.jpg,s\xfc\xdf\n", {}, "not UTF-8"),
    "utf-16": ("image,label\na.jpg,cat\n".encode("utf-16"), {}, "not UTF-8"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(parse, mistake):
    text, options, words = MISTAKES[mistake]
    with pytest.raises(DataError, match=words) as caught:
        parse(text, **options)
    assert "labels.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_label_that_is_given_again_counts_once_and_is_told(parse):
    found = parse("image,label\nb.jpg,cat\na.jpg,cat\nb.jpg,dog\nb.jpg,dog\nb.jpg,cat\nb.jpg,dog\n")
    assert found.labels.dense().tolist() == [[1, 0], [1, 1]]
    (note,) = found.notes
    assert "3 labels are given again, such as image 'b.jpg', class 'dog' (lines 4 and 5)" in note
    (note,) = parse("image,label\na.jpg,cat\na.jpg,cat\n", unlisted="absent").notes
    assert "1 labels are given again" in note


def test_files_that_are_not_there(parse, folder):
    with pytest.raises(DataError, match=r"none\.csv: cannot be read"):
        read("csv", folder / "none.csv", images=folder)
    parse("image,label\na.jpg,cat\n")
    with pytest.raises(DataError, match="no image folder"):
        read("csv", folder.parent / "labels.csv", images=folder / "none")


def test_unknown_formats_and_options(folder):
    assert set(FORMATS) >= {"csv", "voc"}
    with pytest.raises(DataError, match="no format 'cvs'; did you mean 'csv'"):
        read("cvs", folder)
    with pytest.raises(DataError, match=r"'unlised'; its options are images, classes, unlisted"):
        read("csv", folder, images=folder, unlised="absent")


def test_a_dataset_has_an_image_for_each_row(folder):
    with pytest.raises(DataError, match="1 images for 2 rows"):
        Dataset([folder / "a.jpg"], Labels.from_lists([[0], [0]], 1))


FORMULAS = ["=1+1", "+x", "-x", "@x", "\tx", "\rx", "'=1", "''=1", "="]
NAMES = [*FORMULAS, "'x", "'", "a,b", 'a"b', "a\nb", "a\r\nb", " x ", "日本"]


def test_formulas_are_neutralised_and_restored(folder):
    ids = sorted(f"{name}.jpg" for name in NAMES)
    for name in ids:
        (folder / name).touch()
    signed = np.random.default_rng(1).integers(-1, 2, (len(ids), len(NAMES)))
    signed[3] = 0  # a row without any label must survive too
    labels = Labels.from_dense(signed, NAMES, ids)
    path = folder.parent / "out.csv"
    write(path, labels)
    with path.open(encoding="utf-8", newline="") as file:
        for image, label, value in list(stdlib_csv.reader(file))[1:]:
            assert not image.startswith(("=", "+", "-", "@", "\t", "\r"))
            assert not label.startswith(("=", "+", "-", "@", "\t", "\r"))
            assert value in ("1", "-1", "")
    write(folder.parent / "wide.csv", labels, layout="wide")
    with (folder.parent / "wide.csv").open(encoding="utf-8", newline="") as file:
        cells = {cell for line in stdlib_csv.reader(file) for cell in line} - {"-1"}
        assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    data = read("csv", path, images=folder, classes=NAMES)
    assert data.labels == labels
    write(path, data)
    assert read("csv", path, images=folder, classes=NAMES).labels == labels
    assert not list(folder.parent.glob("*.tmp"))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_class_name_comes_back(tmp_path_factory, data):
    text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
    marks = st.text("'=+-@\t\r\n,\" ", min_size=1, max_size=5)
    names = data.draw(st.lists(text | marks, min_size=1, max_size=4, unique=True))
    folder = tmp_path_factory.getbasetemp()
    (folder / "x.jpg").touch()
    values = data.draw(st.lists(st.sampled_from([-1, 0, 1]), min_size=len(names), max_size=len(names)))
    labels = Labels.from_dense([values], names, ["x.jpg"])
    write(folder / "names.csv", labels)
    assert read("csv", folder / "names.csv", images=folder, classes=names).labels == labels


def test_a_failed_write_leaves_the_old_file(folder):
    path = folder.parent / "out.csv"
    path.write_text("old")
    with pytest.raises(DataError, match=r"out\.csv: cannot be written"):
        write(path, Labels.from_lists([[0]], ["\ud800"]))
    assert path.read_text() == "old"
    assert not list(folder.parent.glob("*.tmp"))
    with pytest.raises(DataError, match="cannot be written"):
        write(folder / "none" / "out.csv", Labels.from_lists([[0]], 1))


PIECES = ["image", "label", "value", "a.jpg", "b.jpg", "cat", "1", "-1", "0", ",", ",", "\n", "\n", '"', "'", "=", "\r"]


@pytest.mark.parametrize("examples", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_generated_files_raise_only_documented_errors(folder, examples):
    path = folder.parent / "any.csv"

    def check(drawn):
        header, body, unlisted = drawn
        body = body if isinstance(body, bytes) else "".join(body).encode("utf-8", "surrogatepass")
        path.write_bytes(header.encode() + body)
        message = "any.csv"
        try:
            data = read("csv", path, images=folder, unlisted=unlisted)
            assert list(data.labels.ids) == sorted(data.labels.ids)
            assert all(image.is_file() for image in data.images)
        except (DataError, LabelError) as error:
            message = str(error)
        assert "any.csv" in message
        assert "\n" not in message

    headers = st.sampled_from(["", "image,label\n", "image,label,value\n", "image,cat,dog\n"])
    bodies = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=30) | st.binary(max_size=60)
    for_all(st.tuples(headers, bodies, st.sampled_from([None, "absent", "unknown"])), check, examples)


@pytest.mark.parametrize(
    "text", ["image,label\na.jpg,cat\nb.jpg, cat\n", "image,cat, dog\na.jpg,1,\n", "image, label\na.jpg,cat\n"]
)
def test_white_space_does_not_make_a_second_class(tmp_path, text):
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).touch()
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(DataError, match=r"line [13].*white space"):
        read("csv", tmp_path / "labels.csv", images=tmp_path)


@pytest.mark.parametrize("layout", ["long", "wide"])
@pytest.mark.parametrize("examples", [50, pytest.param(2_000, marks=pytest.mark.slow)])
def test_round_trip(tmp_path, monkeypatch, layout, examples):
    folder, path = make_images(tmp_path / "images"), tmp_path / "out.csv"
    monkeypatch.setattr(csv, "_PACKED", 8)  # several blocks

    def check(data):
        write(path, data, layout=layout)
        again = read("csv", path, images=folder, classes=list(data.labels.classes))
        assert again.labels == data.labels
        assert again.images == data.images
        if layout == "wide" and all(name == name.strip() for name in data.labels.classes):
            assert read("csv", path, images=folder).labels == data.labels

    for_all(tables(folder), check, examples)


@pytest.mark.parametrize("classes", [["label"], ["label", "value"], ["image"], ["image", "label"]])
def test_wide_files_with_the_names_of_long_ones(folder, classes):
    labels = Labels.from_dense([[1] * len(classes), [-1] * len(classes)], classes, ["a.jpg", "b.jpg"])
    write(folder.parent / "out.csv", labels, layout="wide")
    assert read("csv", folder.parent / "out.csv", images=folder).labels == labels


def test_what_is_written(folder):
    labels = Labels.from_dense([[1, 0], [0, 0]], ["cat", "dog"], ["a.jpg", "sub/c.jpg"])
    for layout, lines in (
        ("wide", ["image,cat,dog", "a.jpg,1,", "sub/c.jpg,,"]),
        ("long", ["image,label,value", "a.jpg,cat,1", "sub/c.jpg,,"]),
    ):
        public_write("csv", folder.parent / "out.csv", labels, layout=layout)
        assert (folder.parent / "out.csv").read_text().splitlines() == lines
    with pytest.raises(DataError, match="layout='tall' is not possible"):
        write(folder.parent / "out.csv", labels, layout="tall")


def test_images_are_named_by_their_paths(folder):
    """Some formats number their images; a CSV file has to name the files."""
    data = Dataset([folder / "a.jpg", folder / "sub" / "c.jpg"], Labels.from_lists([[0], []], ["cat"], ids=["17", "4"]))
    write(folder.parent / "out.csv", data, images=folder)
    assert read("csv", folder.parent / "out.csv", images=folder).labels.ids == ("a.jpg", "sub/c.jpg")


def test_unwritable_formats_and_options(folder):
    labels = Labels.from_lists([[0]], ["cat"], ids=["a.jpg"])
    with pytest.raises(DataError, match="'imagefolder' can be read but not written; choose from .*'csv'"):
        public_write("imagefolder", folder, labels)
    with pytest.raises(DataError, match="no format 'cvs'; did you mean 'csv'"):
        public_write("cvs", folder, labels)
    with pytest.raises(DataError, match="'lay'; its options are layout, images"):
        public_write("csv", folder / "x.csv", labels, lay="wide")


@pytest.mark.parametrize("shuffled", [False, True])
def test_wide_rows_come_in_the_order_of_their_names(folder, monkeypatch, shuffled):
    """In several blocks, and with classes in another order than the columns, one of them not in the file."""
    monkeypatch.setattr(csv, "_PACKED", 50)
    random = np.random.default_rng(3)
    truth = random.integers(-1, 2, (100, 7))
    ids = [f"{row:03}.jpg" for row in range(100)]
    for name in ids:
        (folder / name).touch()
    order = random.permutation(100) if shuffled else np.arange(100)
    lines = [",".join([ids[row], *(str(value or "") for value in truth[row])]) for row in order]
    (folder / "wide.csv").write_text("\n".join(["image,c0,c1,c2,c3,c4,c5,c6", *lines]))
    classes = ["c6", "none", *(f"c{number}" for number in range(6))]
    found = read("csv", folder / "wide.csv", images=folder, classes=classes).labels
    assert found.ids == tuple(ids)
    np.testing.assert_array_equal(found.dense(), np.insert(truth[:, [6, 0, 1, 2, 3, 4, 5]], 1, 0, axis=1))


def test_many_classes_take_no_dense_matrix(folder):
    """A dense matrix of these would be 100 MB; one that is far too large is refused before it is made."""
    ids = [f"{i:05d}.jpg" for i in range(1000)]
    for name in ids:
        (folder / name).touch()
    classes = [f"c{i:06d}" for i in range(100_000)]
    labels = Labels.from_lists([[i, i + 1] for i in range(1000)], classes, ids=ids)
    path = folder.parent / "out.csv"
    tracemalloc.start()
    write(path, labels)
    written = tracemalloc.get_traced_memory()[1]
    assert read("csv", path, images=folder, classes=classes).labels == labels
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(written, peak) < 60e6
    table = Table(path, folder, classes)
    table.rows = {str(i): i for i in range(30_000)}
    with pytest.raises(DataError, match="makes 3,000,000,000 labels, too many; say unlisted='unknown'"):
        table.dataset(complete=True)
