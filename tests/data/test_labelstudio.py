"""Label Studio: what annotators chose, alone and together, and tasks to import."""

import copy
import json

import pytest

from pluralis.data.dataset import Dataset, Hints
from pluralis.data.formats import labelstudio, read, write
from pluralis.errors import DataError, LabelError
from pluralis.labels import Labels
from tests.data.generated import (
    EXAMPLES,
    SAMPLES,
    TRIPS,
    damaged_json,
    exact,
    labels,
    only_documented_errors,
    touch,
)

EXPORT, SHORT = SAMPLES / "labelstudio" / "export.json", SAMPLES / "labelstudio" / "export-min.json"
CLASSES = ["sea", "sky", "snow", "tree"]
CONTENT = json.loads(EXPORT.read_text())


@pytest.fixture
def folder(tmp_path):
    return touch(tmp_path / "images", "beach.jpg", "winter/alp hut.jpg", "city.jpg", "field.jpg")


def test_what_nobody_chose_is_unknown(folder):
    data = read("labelstudio", EXPORT, images=folder, unlisted="unknown")
    assert data.labels.ids == ("beach.jpg", "city.jpg", "field.jpg", "winter/alp hut.jpg")
    assert data.labels.classes == ("sea", "sky", "snow", "tree")
    assert data.labels.dense().tolist() == [[1, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]
    assert data.images[3] == folder.resolve() / "winter" / "alp hut.jpg"
    assert data.hints == Hints.gather([0], [2], [0.7])


def test_annotators_who_differ_leave_it_open(folder):
    agreed = read("labelstudio", EXPORT, images=folder, unlisted="absent").labels
    # City has no annotation; somebody submitted field without a choice; a cancelled annotation said sea for the hut.
    assert agreed.dense().tolist() == [[0, 1, -1, 0], [0, 0, 0, 0], [-1, -1, -1, -1], [-1, -1, 1, -1]]
    last = read("labelstudio", EXPORT, images=folder, unlisted="absent", several="last").labels
    assert last.dense()[0].tolist() == [1, 1, -1, -1]


def test_ground_truth_counts_alone(folder, tmp_path):
    made = copy.deepcopy(CONTENT)
    made[0]["annotations"][1]["ground_truth"] = True
    (tmp_path / "e.json").write_text(json.dumps(made))
    data = read("labelstudio", tmp_path / "e.json", images=folder, unlisted="absent", classes=CLASSES)
    assert data.labels.dense()[0].tolist() == [-1, 1, -1, 1]


def test_json_min(folder):
    whole = read("labelstudio", EXPORT, images=folder, unlisted="absent").labels
    short = read("labelstudio", SHORT, images=folder, unlisted="absent", control="scene").labels
    assert short.ids == ("beach.jpg", "field.jpg", "winter/alp hut.jpg")
    assert short == whole.select([0, 2, 3])
    with pytest.raises(DataError, match=r"tasks\[0\] is JSON-MIN, which does not mark its choices; say control=NAME"):
        read("labelstudio", SHORT, images=folder, unlisted="absent")


def test_classes_and_options(folder):
    data = read("labelstudio", EXPORT, images=folder, unlisted="unknown", classes=["tree", "fog", "snow", "sky", "sea"])
    assert data.labels.dense()[0].tolist() == [1, 0, 0, 1, 1]
    for options, words in (
        ({"unlisted": None}, "unlisted=None is not possible; say 'absent'"),
        ({"classes": ["sea", "snow", "tree"]}, r"export\.json: the choice 'sky' is not among the classes"),
        ({"classes": ["sea", "sea"]}, "give a list of different names"),
        ({"several": "most"}, "several='most'"),
        ({"images": None}, "name their folder"),
        ({"key": "photo"}, r"tasks\[0\]\.data\.photo is lacking"),
    ):
        with pytest.raises(DataError, match=words):
            read("labelstudio", EXPORT, **{"images": folder, "unlisted": "unknown", **options})


def changed(path, value):
    made = copy.deepcopy(CONTENT)
    place = made
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return made


RESULT = [0, "annotations", 0, "result", 0]
MISTAKES = {
    "no list": ({}, "tasks is not a list"),
    "no task": ([1], r"tasks\[0\] is not an object"),
    "no data": (changed([0, "data"], 3), r"tasks\[0\]\.data is not an object"),
    "no annotations": (changed([0, "annotations"], None), r"tasks\[0\]\.annotations is lacking"),
    "no choices": (changed([*RESULT, "value"], {}), r"annotations\[0\]\.result\[0\]\.value\.choices is lacking"),
    "a number": (changed([*RESULT, "value", "choices"], [3]), r"value\.choices\[0\] is 3; give a text"),
    "another control": (changed([*RESULT, "from_name"], "mood"), "choices named 'mood' and 'scene'; say which"),
    "no name": (changed([*RESULT, "from_name"], None), r"from_name is lacking"),
    "no time": (changed([0, "annotations", 0, "updated_at"], 5), r"updated_at is not a text"),
    "no score": (changed([0, "predictions", 0, "score"], 3), r"predictions\[0\]\.score is 3; give a number"),
    "outside": (changed([1, "data", "image"], "/data/local-files/?d=../x.jpg"), r"tasks\[1\]\.data\.image: .* refused"),
    "no file": (changed([1, "data", "image"], "x.jpg"), "1 of the listed images are missing"),
    "no address": (changed([1, "data", "image"], "http://[x"), r"tasks\[1\]\.data\.image: Invalid IPv6"),
    "two spellings": (changed([1, "data", "image"], "./beach.jpg"), "the image './beach.jpg' has a task already"),
    "two tasks": (changed([1, "data", "image"], "beach.jpg"), "the image 'beach.jpg' has a task already"),
    "half a character": (changed([*RESULT, "value", "choices"], ["\ud800"]), "which holds half a character"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(folder, tmp_path, mistake):
    made, words = MISTAKES[mistake]
    (tmp_path / "e.json").write_text(json.dumps(made))
    with pytest.raises(DataError, match=words) as caught:
        read("labelstudio", tmp_path / "e.json", images=folder, unlisted="absent")
    assert "e.json" in str(caught.value)


def test_the_control_is_stated(folder, tmp_path):
    (tmp_path / "e.json").write_text(json.dumps(changed([*RESULT, "from_name"], "mood")))
    data = read("labelstudio", tmp_path / "e.json", images=folder, unlisted="unknown", control="mood")
    assert data.labels.classes == ("sea", "sky")
    assert data.labels.dense()[0].tolist() == [1, 1]


def test_results_of_other_kinds_are_counted(folder, tmp_path):
    for control, words in (
        (None, "choices 'scene' are left out: 1 'rectanglelabels'"),
        ("mood", "3 choices named 'scen"),
    ):
        made = CONTENT if control is None else changed([*RESULT, "from_name"], "mood")
        (tmp_path / "e.json").write_text(json.dumps(made))
        [note] = read("labelstudio", tmp_path / "e.json", images=folder, unlisted="unknown", control=control).notes
        assert words in note
    lines = [{"image": "beach.jpg", "scene": "sea", "box": [{"x": 1, "rectanglelabels": ["boat"]}], "mood": "good"}]
    (tmp_path / "e.json").write_text(json.dumps(lines))
    [note] = read("labelstudio", tmp_path / "e.json", images=folder, unlisted="unknown", control="scene").notes
    assert note.endswith("are left out: 1 'box'")  # the mood may be a text of the task


@pytest.mark.parametrize("file", [EXPORT, SHORT])
@pytest.mark.parametrize("control", ["scnee", 1])
def test_a_misspelt_control_is_refused(folder, file, control):
    """Else every label would be absent."""
    options = {"images": folder, "unlisted": "absent", "classes": CLASSES, "control": control}
    with pytest.raises(DataError, match=rf"{file.name}: there are no choices named '{control}'; .*choose from 'scene'"):
        read("labelstudio", file, **options)


def test_a_control_may_look_like_a_number(folder, tmp_path):
    (tmp_path / "e.json").write_text(json.dumps([{"image": "beach.jpg", "1": "sea"}]))
    data = read("labelstudio", tmp_path / "e.json", images=folder, unlisted="unknown", control=1)
    assert data.labels.dense().tolist() == [[1]]


def test_a_file_without_choices_is_no_file_of_images_without_any(folder, tmp_path):
    boxes = changed([0, "annotations"], [{"result": [{"type": "rectanglelabels", "value": {}}, {"type": "taxonomy"}]}])[
        :1
    ]
    boxes[0]["predictions"] = []
    for made, words in ((boxes, "no choices, but 1 'rectanglelabels', 1 'taxonomy'; "), ([], "no class in the file")):
        (tmp_path / "e.json").write_text(json.dumps(made))
        with pytest.raises(DataError, match=rf"e\.json: there (are|is) {words}"):
            read("labelstudio", tmp_path / "e.json", images=folder, unlisted="unknown")
    (tmp_path / "e.json").write_text(json.dumps(changed([0, "annotations"], [{"result": []}])[:1]))
    stated = {"unlisted": "absent", "classes": CLASSES, "control": "scene"}
    # Nothing was chosen, and nothing else either: somebody looked, and none of it is there.
    assert read("labelstudio", tmp_path / "e.json", images=folder, **stated).labels.dense().tolist() == [[-1] * 4]


def test_tasks_to_import(tmp_path):
    """The keys that Label Studio documents for tasks with annotations and predictions."""
    made = Labels.from_dense([[1, 0, 1], [0, 0, 0]], ["a", "b", "c"], ["x y.jpg", "z.jpg"])
    folder = touch(tmp_path / "images", *made.ids)
    hints = Hints.gather([1, 1, 1], [0, 1, 2], [0.9, 0.6, 0.2])
    data = Dataset([folder.resolve() / name for name in made.ids], made, hints)
    write("labelstudio", tmp_path / "t.json", data, unlisted="unknown", images=folder, control="scene", to="img")
    first, second = json.loads((tmp_path / "t.json").read_text())
    assert first["data"]["image"] == "/data/local-files/?d=x%20y.jpg"
    result = {"from_name": "scene", "to_name": "img", "type": "choices", "value": {"choices": ["a", "c"]}}
    assert first["annotations"] == [{"result": [result], "was_cancelled": False}]
    assert first["predictions"] == []
    assert second["annotations"] == []
    [prediction] = second["predictions"]
    assert prediction["score"] == 0.6
    assert prediction["result"] == [{**result, "value": {"choices": ["a", "b"]}}]
    assert second["data"]["scores"] == {"a": 0.9, "b": 0.6, "c": 0.2}
    back = read("labelstudio", tmp_path / "t.json", images=folder, unlisted="unknown", classes=["a", "b", "c"])
    assert back.labels == made
    with pytest.raises(LabelError, match="row 'q' holds an absent label"):
        write("labelstudio", tmp_path / "t.json", Labels.from_dense([[1, -1]], ["a", "b"], ["q"]), unlisted="unknown")


def test_every_confidence_comes_back(tmp_path):
    """None is rounded up, or the prediction would outdo the file of hints."""
    sure = [0.7777777, 0.1234567, 0.9999999, 1 / 3]
    made = Labels.from_lists([[0]] * 4, ["a", "b"], ids=["0.jpg", "1.jpg", "2.jpg", "3.jpg"])
    folder = touch(tmp_path / "images", *made.ids)
    hints = Hints.gather([0, 1, 2, 3], [1, 1, 1, 1], sure)
    data = Dataset([folder.resolve() / name for name in made.ids], made, hints)
    write("labelstudio", tmp_path / "t.json", data, unlisted="unknown", images=folder, threshold=0)
    assert read("labelstudio", tmp_path / "t.json", images=folder, unlisted="unknown").hints == hints


def test_predictions_without_a_score_are_counted_or_given_one(folder, tmp_path):
    made = copy.deepcopy(CONTENT)
    del made[0]["predictions"][0]["score"]
    (tmp_path / "e.json").write_text(json.dumps(made))
    data = read("labelstudio", tmp_path / "e.json", images=folder, unlisted="unknown")
    assert data.hints is None
    assert "e.json: 1 choices of predictions have no score" in data.notes[-1]
    stated = read("labelstudio", tmp_path / "e.json", images=folder, unlisted="unknown", unscored=0.25)
    assert stated.hints == Hints.gather([0], [2], [0.25])
    assert not any("score" in note for note in stated.notes)
    with pytest.raises(DataError, match="unscored=2.* is not possible"):
        read("labelstudio", tmp_path / "e.json", images=folder, unlisted="unknown", unscored=2)


def test_two_addresses_of_one_file_are_no_two_annotators(folder, tmp_path):
    lines = [{"image": f"s3://{bucket}/beach.jpg", "scene": "sea"} for bucket in ("a", "b")]
    for made, words in ((lines, r"tasks\[1\]\.image: .*already, under 's3://a/beach"), (lines[:1] * 2, "")):
        (tmp_path / "e.json").write_text(json.dumps(made))
        if words:
            with pytest.raises(DataError, match=words):
                read("labelstudio", tmp_path / "e.json", images=folder, unlisted="absent", control="scene")
        else:
            assert len(read("labelstudio", tmp_path / "e.json", images=folder, unlisted="absent", control="scene")) == 1


@pytest.mark.parametrize("kind", ["unknown", "absent"])
@pytest.mark.parametrize("examples", TRIPS)
def test_a_way_back(tmp_path, examples, kind):
    (tmp_path / "images").mkdir()

    def go(made: Labels) -> Labels:
        write("labelstudio", tmp_path / "t.json", made, unlisted=kind)
        touch(tmp_path / "images", *made.ids)
        options = {"images": tmp_path / "images", "unlisted": kind, "classes": list(made.classes)}
        return read("labelstudio", tmp_path / "t.json", **options).labels

    exact(examples, labels(kind), go)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_generated_files_raise_only_documented_errors(folder, tmp_path, examples):
    touch(folder, "a.jpg")

    def parse(text):
        (tmp_path / "e.json").write_text(text)
        return labelstudio.read(tmp_path / "e.json", images=folder, unlisted="absent")

    short = json.loads(SHORT.read_text())
    only_documented_errors(examples, damaged_json(CONTENT) | damaged_json(short), parse, "e.json")
