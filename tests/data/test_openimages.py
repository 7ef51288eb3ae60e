"""Open Images: verified labels, machine labels beside them, boxes, and files that strangers made."""

import tracemalloc

import pytest

from pluralis.data.dataset import Dataset, Hints
from pluralis.data.formats import openimages, read, write
from pluralis.errors import DataError
from pluralis.labels import Labels
from tests.data.generated import (
    EXAMPLES,
    SAMPLES,
    TRIPS,
    damaged_text,
    exact,
    labels,
    only_documented_errors,
    touch,
)

HERE = SAMPLES / "openimages"
HUMAN = HERE / "oidv7-train-annotations-human-imagelabels.csv"
MACHINE = HERE / "train-annotations-machine-imagelabels.csv"
BOXES = HERE / "train-annotations-bbox.csv"
IDS = ("000060e3121c7305", "0000b9fcba019d36", "0000cb13febe0138")


@pytest.fixture
def folder(tmp_path):
    return touch(tmp_path / "train", *(f"{name}.jpg" for name in IDS))


def test_verified_labels(folder):
    data = read("openimages", HUMAN, images=folder)
    assert data.labels.ids == IDS
    assert data.labels.classes == ("/m/03jm5", "/m/0bt9lr", "/m/0k4j")
    assert data.labels.dense().tolist() == [[-1, 1, -1], [0, 0, 1], [0, -1, 0]]
    assert [path.stem for path in data.images] == list(IDS)
    assert data.hints is None


def test_machine_labels_stay_beside_and_boxes_are_present(folder):
    data = read("openimages", HUMAN, images=folder, machine=MACHINE, boxes=BOXES)
    assert data.labels.dense().tolist() == [[-1, 1, -1], [0, 0, 1], [1, -1, 0]]
    assert data.hints is not None
    assert data.hints.rows.tolist() == [0, 1, 1]
    assert data.hints.columns.tolist() == [0, 0, 1]
    assert data.hints.confidence.tolist() == pytest.approx([0.6, 0.8, 1.0])


def test_a_name_with_and_without_its_quote_is_one(tmp_path):
    """A spreadsheet would run =a, so that '=a may stand for it: in one file both name one image, or one class."""
    folder, file, names = touch(tmp_path / "train", "=a.jpg", "'=a.jpg"), tmp_path / "x.csv", tmp_path / "names.csv"
    head = "ImageID,Source,LabelName,Confidence\n"
    file.write_text(head + "=a,verification,x,1\n'=a,verification,y,0\n''=a,verification,y,1\n")
    data = read("openimages", file, images=folder)
    assert data.labels.ids == ("'=a", "=a")
    assert data.labels.dense().tolist() == [[0, 1], [1, -1]]
    file.write_text(head + "=a,verification,x,1\n'=a,verification,x,0\n")
    with pytest.raises(DataError, match=r"x\.csv, line 2 and .*x\.csv, line 3; keep one"):
        read("openimages", file, images=folder)
    file.write_text(head + "=a,verification,=x,1\n=a,verification,'=x,0\n")
    names.write_text("'=x,first\n")
    for options in ({}, {"names": names}):
        with pytest.raises(DataError, match=r"x\.csv, line 2 and .*x\.csv, line 3; keep one"):
            read("openimages", file, images=folder, **options)
    names.write_text("=x,first\n'=x,second\n")
    with pytest.raises(DataError, match=r"names\.csv, line 2: not a code that is new"):
        read("openimages", file, images=folder, names=names)


def test_descriptions_fix_the_classes(folder):
    data = read("openimages", HUMAN, images=folder, names=HERE / "class-descriptions.csv")
    assert data.labels.classes == ("Car", "House", "Dog", "Dog, toy")
    assert data.labels.dense().tolist() == [[-1, -1, 1, 0], [1, 0, 0, 0], [0, 0, -1, 0]]
    shared = read("openimages", HUMAN, images=folder, names=HERE / "oidv7-class-descriptions.csv")
    assert shared.labels.classes == ("Car", "House (/m/03jm5)", "Dog", "House (/m/01zzzz)")


def test_a_folder_and_a_part_of_the_images(tmp_path):
    (tmp_path / HUMAN.name).write_bytes(HUMAN.read_bytes())
    touch(tmp_path / "train", f"{IDS[2]}.jpg", f"{IDS[0]}.jpg")
    with pytest.raises(DataError, match=r"imagelabels\.csv: 1 of the listed images are missing: .*0000b9fcba019d36"):
        read("openimages", tmp_path)
    part = read("openimages", tmp_path, missing="drop", machine=MACHINE)
    assert part.labels.ids == (IDS[0], IDS[2])
    assert part.labels.dense().tolist() == [[-1, 1, -1], [0, -1, 0]]
    assert part.hints.rows.tolist() == [0]
    [note] = part.notes
    assert note.endswith(f"1 of 3 images are not in {tmp_path / 'train'}, such as '{IDS[1]}.jpg', and are left out")
    for options, words in (
        ({"split": "validation"}, "one .*validation-annotations-human-imagelabels.csv, but there are: none"),
        ({"split": "../x"}, "is not possible"),
        ({"missing": "no"}, "missing='no'"),
    ):
        with pytest.raises(DataError, match=words):
            read("openimages", tmp_path, **options)


HEAD = "ImageID,Source,LabelName,Confidence\n"
ONE = f"{IDS[0]},verification,/m/0k4j,1\n"
MISTAKES = {
    "no header": (ONE, "line 1: the columns ImageID, Source, LabelName, Confidence are not all there"),
    "empty": ("", "line 1: the columns"),
    "a cell too many": (HEAD + ONE + "a,b,c,1,1\n", "line 3: 5 cells where the header has 4"),
    "no number": (HEAD + f"{IDS[0]},machine,/m/0k4j,high\n", "line 2: the confidence 'high'"),
    "no share": (HEAD + f"{IDS[0]},verification,/m/0k4j,2\n", "line 2: the confidence '2'"),
    "not a number": (HEAD + f"{IDS[0]},machine,/m/0k4j,nan\n", "line 2: the confidence 'nan'"),
    "no image": (HEAD + ONE + ",verification,/m/0k4j,1\n", "line 3: ImageID is empty"),
    "no class": (HEAD + f"{IDS[0]},verification,,1\n", "line 2: LabelName is empty"),
    "a conflict": (HEAD + ONE + ONE + ONE.replace(",1\n", ",0\n"), "as absent, in .*line 2 and .*line 4; keep"),
    "outside": (HEAD + "../x,verification,/m/0k4j,1\n", r"'\.\./x\.jpg' is refused"),
    "one file": (HEAD + ONE + ONE.replace(",1", ",0").replace(IDS[0], f"./{IDS[0]}"), "have one and the same image"),
    "not text": (HEAD.encode() + b"\xff,", "or later: not UTF-8"),
    "an open quote": (HEAD + 'a,"b', "line 2: unexpected end of data"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(folder, mistake):
    text, words = MISTAKES[mistake]
    file = folder.parent / "labels.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=words) as caught:
        read("openimages", file, images=folder)
    assert str(file) in str(caught.value)


def test_what_is_not_described(folder):
    names = folder.parent / "names.csv"
    for text, words in (
        ("/m/0k4j,Car\n", "line 2: the class '/m/0bt9lr' is not described"),
        ("/m/0k4j,Car\n/m/0k4j,Auto\n", "line 2: not a code that is new and a name"),
        ("/m/0k4j\n", "line 1: not a code"),
        ("", "describes no class"),
    ):
        names.write_text(text)
        with pytest.raises(DataError, match=words):
            read("openimages", HUMAN, images=folder, names=names)


@pytest.mark.parametrize("examples", TRIPS)
def test_a_way_back(tmp_path, examples):
    file, names = tmp_path / "labels.csv", tmp_path / "names.csv"

    def go(made: Labels) -> Labels:
        write("openimages", file, made, names=names)
        touch(tmp_path / "images", *made.ids)
        return read("openimages", file, images=tmp_path / "images", names=names, suffix="").labels

    (tmp_path / "images").mkdir()
    exact(examples, labels(blank=False), go)


def test_hints_go_and_return(tmp_path):
    made = Labels.from_dense([[1, -1], [0, 0]], ["=a", "b"], ["x", "y"])
    hints = Hints.gather([1, 0, 1], [1, 0, 1], [0.1, 1.0, 0.7])
    images = touch(tmp_path, "x.jpg", "y.jpg")
    data = Dataset([images / "x.jpg", images / "y.jpg"], made, hints)
    write("openimages", tmp_path / "l.csv", data, names=tmp_path / "n.csv")
    assert "'=a,1" in (tmp_path / "l.csv").read_text()
    back = read("openimages", tmp_path / "l.csv", images=images, names=tmp_path / "n.csv")
    assert back.labels == made
    assert back.hints == hints
    assert hints.confidence.tolist() == pytest.approx([1.0, 0.7])  # the more confident of two
    with pytest.raises(DataError, match="row 'y' has no label, and this format lists no such image"):
        write("openimages", tmp_path / "l.csv", made)


@pytest.mark.parametrize(("ending", "suffix"), [(".jpg", ".jpg"), (".png", "")])
def test_images_are_named_by_their_paths(tmp_path, ending, suffix):
    """Ids of other formats, such as COCO's numbers, find no file."""
    paths = [touch(tmp_path, f"sub/{name}").resolve() / f"sub/{name}" for name in (f"x{ending}", "y.jpg")]
    data = Dataset(paths, Labels.from_dense([[1, -1], [0, 1]], ["a", "b"], ["12", "7"]))
    write("openimages", tmp_path / "l.csv", data, images=tmp_path)
    back = read("openimages", tmp_path / "l.csv", images=tmp_path, suffix=suffix)
    assert back.images == paths
    assert back.labels.dense().tolist() == data.labels.dense().tolist()


def test_hints_lie_inside_the_labels():
    made = Labels.from_dense([[1, -1]], ["a", "b"], ["x"])
    with pytest.raises(DataError, match="a hint lies outside the 1 rows and 2 classes"):
        Dataset([SAMPLES], made, Hints.gather([0], [2], [0.5]))


def test_many_classes_take_no_matrix(tmp_path):
    """A thousand rows of twenty thousand classes would be 20 MB, were they dense."""
    rows, classes = 1000, 20_000
    touch(tmp_path, *(f"{row}.jpg" for row in range(rows)))
    file, names = tmp_path / "l.csv", tmp_path / "n.csv"
    names.write_text("".join(f"/m/{c},{c}\n" for c in range(classes)))
    lines = (f"{row},verification,/m/{row * k},1\n" for row in range(rows) for k in (5, 19, 7))
    file.write_text(HEAD + "".join(lines))
    tracemalloc.start()
    data = read("openimages", file, images=tmp_path, names=names)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert data.labels.shape == (rows, classes)
    assert len(data.labels.values) == 3 * rows - 2
    assert peak < 12e6


@pytest.mark.parametrize("examples", EXAMPLES)
def test_generated_files_raise_only_documented_errors(folder, examples):
    file = folder.parent / "labels.csv"
    pieces = [*IDS, "machine", ",", "\n", '"', "0.5", "1", "0", "nan", "\0", "\ud800", "..", "/", "=", "'", "\r"]

    def parse(text: bytes) -> Dataset:
        file.write_bytes(text)
        return openimages.read(file, images=folder, missing="drop")

    text = HUMAN.read_text() + MACHINE.read_text()[len(HEAD) :]
    only_documented_errors(examples, damaged_text(text, pieces), parse, file.name)
