"""Classes that may be another one misspelt: told where that is likely, and of no real data set."""

import doctest
import itertools
import random

import numpy as np
import pytest

from pluralis.config import DataPart, SelectPart
from pluralis.data import near_names as module
from pluralis.data.near_names import near_names, near_note
from pluralis.data.source import load_split
from pluralis.labels import Labels
from tests.data_command import pluralis

VOC = (
    "aeroplane,bicycle,bird,boat,bottle,bus,car,cat,chair,cow,diningtable,dog,horse,motorbike,person,pottedplant,sheep,"
    "sofa,train,tvmonitor"
)
COCO = (
    "person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,stop sign,parking meter,"
    "bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,backpack,umbrella,handbag,tie,suitcase,frisbee,"
    "skis,snowboard,sports ball,kite,baseball bat,baseball glove,skateboard,surfboard,tennis racket,bottle,wine glass,"
    "cup,fork,knife,spoon,bowl,banana,apple,sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,"
    "potted plant,bed,dining table,toilet,tv,laptop,mouse,remote,keyboard,cell phone,microwave,oven,toaster,sink,"
    "refrigerator,book,clock,vase,scissors,teddy bear,hair drier,toothbrush"
)
MULAN = (
    "Brown Creeper,Pacific Wren,Pacific-slope Flycatcher,Red-breasted Nuthatch,Dark-eyed Junco,Olive-sided Flycatcher,"
    "Hermit Thrush,Chestnut-backed Chickadee,Varied Thrush,Hermit Warbler,Swainson's Thrush,Hammond's Flycatcher,"
    "Western Tanager,Black-headed Grosbeak,Golden Crowned Kinglet,Warbling Vireo,MacGillivray's Warbler,Stellar's Jay,"
    "Common Nighthawk,Beach,Sunset,FallFoliage,Field,Mountain,Urban,amazed-suprised,happy-pleased,relaxing-calm,"
    "quiet-still,sad-lonely,angry-aggresive"
)
NUMBERED = ",".join(text.format(n) for text in ("digit {}", "Class{}", "{:04d}", "{}") for n in range(15))


def labels(**counts: int) -> Labels:
    """A row for each label; _ in a name is a blank."""
    rows = [[c] for c, count in enumerate(counts.values()) for _ in range(count)]
    return Labels.from_lists(rows, [name.replace("_", " ") for name in counts])


def pairs(found: Labels) -> list[tuple[str, str]]:
    return [(found.classes[near.rare], found.classes[near.common]) for near in near_names(found)]


SLIPS = {
    "person": ["preson", "persn", "persoon", "persan", "eprson", "Preson", "person."],
    "boat": ["baot", "obat", "boatt", "Baot"],
    "traffic_light": ["traffic_ligth", "trafficlight", "traffic-light", "trafic_light", "trafficnlight"],
    "horse": ["hrse", "hurse", "horses"],
    "digit_7": ["digti_7"],
    "fenêtre": ["fenetre"],
}


@pytest.mark.parametrize(("meant", "slip"), [(meant, slip) for meant, slips in SLIPS.items() for slip in slips])
def test_one_slip_is_told(meant, slip):
    found = labels(**{"other": 50, slip: 1, meant: 90})
    assert pairs(found) == [(slip.replace("_", " "), meant.replace("_", " "))]


OTHER_WORDS = [
    ("cat", "car"),  # too short to tell
    ("big_cat", "big_car"),
    ("ab_c", "ab-c"),
    ("type_i", "type_ii"),
    ("person_(b)", "person_()"),
    ("vitamin_a", "vitamin_b"),
    ("goat", "boat"),  # begins otherwise
    ("white_mouse", "white_house"),
    ("boot", "boat"),  # four letters, another one
    ("digit_1", "digit_7"),
    ("class1", "class10"),
    ("a", "A"),
    ("persson", "preson"),  # two slips
    ("trian_station", "train_satiton"),
    ("person_a", "personal"),
]


@pytest.mark.parametrize(("rare", "common"), OTHER_WORDS)
def test_other_words_are_not(rare, common):
    assert pairs(labels(**{rare: 1, common: 90})) == []


@pytest.mark.parametrize(("few", "many", "told"), [(1, 19, False), (1, 20, True), (10, 200, True), (10, 199, False)])
def test_few_beside_many(few, many, told):
    assert bool(near_names(labels(preson=few, person=many))) is told


def test_more_than_ten_labels_are_no_slip():
    assert near_names(labels(preson=11, person=1000)) == []


def test_of_several_the_most_frequent_was_meant():
    assert pairs(labels(persons=1, person=30, persona=40)) == [("persons", "persona")]


def test_names_that_stand_at_one_image_are_two_things():
    rows = [[0]] * 90 + [[0, 1]]
    assert near_names(Labels.from_lists(rows, ["shirt", "skirt"])) == []
    assert pairs(Labels.from_lists([*rows[:-1], [1]], ["shirt", "skirt"])) == [("skirt", "shirt")]
    three = Labels.from_lists([*rows, [2], [3]], ["shirt", "skirt", "shirtt", "sky"])
    assert pairs(three) == [("shirtt", "shirt")]


def test_what_is_absent_is_written_too():
    """In complete labels a class that is never present is not one that was written often."""
    dense = np.zeros((91, 2), int)
    dense[:90, 0], dense[90, 1] = 1, -1
    assert pairs(Labels.from_dense(dense, ["person", "preson"])) == [("preson", "person")]
    complete = np.full((91, 2), -1)
    complete[0, 0] = 1
    assert near_names(Labels.from_dense(complete, ["hair dryer", "hair drier"])) == []
    complete[:60, 1] = 1
    complete[0, 1] = -1
    assert pairs(Labels.from_dense(complete, ["hair dryer", "hair drier"])) == [("hair dryer", "hair drier")]
    assert near_names(Labels.from_dense(dense * [1, 0], ["person", "preson"])) == []  # nobody wrote it


@pytest.mark.parametrize(
    ("one", "other"),
    [("Person", "person"), ("CAT", "cat"), ("Straße", "STRASSE"), ("caf\u00e9", "cafe\u0301"), ("a  b", " a\u00a0b ")],
)
def test_one_spelling_is_told_whatever_the_counts(one, other):
    found = Labels.from_lists([[0]] * 40 + [[1]] * 45 + [[0, 1]], [one, other])
    assert [(near.rare, near.common, near.few, near.many) for near in near_names(found)] == [(0, 1, 41, 46)]


def test_signs_that_look_the_same_are_shown():
    note = near_note(Labels.from_lists([[0]] * 3 + [[1]], ["caf\u00e9", "cafe\u0301"]))
    assert note.startswith(r"1 class may be misspelt: 'cafe\u0301' (1 label) beside 'caf\xe9' (3); where both")


def test_three_of_many_are_named():
    found = labels(person=60, Person=7, preson=2, persn=3, perrson=1, dog=80)
    note = near_note(found)
    assert note.startswith("4 classes may be misspelt: 'Person' (7 labels) beside 'person' (60), 'persn' (3 labels)")
    assert "'preson' (2 labels) beside 'person' (60), …; " in note
    assert "perrson" not in note
    assert near_note(labels(person=60, dog=1)) == ""


@pytest.mark.parametrize("names", [VOC, COCO, MULAN, NUMBERED], ids=len)
def test_real_names_give_no_alarm_however_rare_one_of_them_is(names):
    names = names.split(",")
    for rare in range(len(names)):
        rows = [[c] for c in range(len(names)) for _ in range(1 if c == rare else 20)]
        assert near_names(Labels.from_lists(rows, names)) == []


def test_real_names_have_the_slips_that_are_made_in_them():
    draw, names = random.Random(0), COCO.split(",")
    for name in (name for name in names if len(name) >= 6 and " " not in name):
        at = draw.randrange(1, len(name) - 1)
        slip = draw.choice([name[:at] + name[at + 1 :], name[:at] + "q" + name[at:], name[:at] + "q" + name[at + 1 :]])
        rows = [[c] for c in range(len(names)) for _ in range(20)]
        assert pairs(Labels.from_lists([*rows, [len(names)]], [*names, slip])) == [(slip, name)]


def distance(a: str, b: str) -> int:
    """Insertions, deletions, changes and swaps of neighbours, by the table that textbooks give."""
    cost = np.zeros((len(a) + 1, len(b) + 1), int)
    cost[:, 0], cost[0] = np.arange(len(a) + 1), np.arange(len(b) + 1)
    for i, j in itertools.product(range(1, len(a) + 1), range(1, len(b) + 1)):
        ways = [cost[i - 1, j] + 1, cost[i, j - 1] + 1, cost[i - 1, j - 1] + (a[i - 1] != b[j - 1])]
        if i > 1 and j > 1 and a[i - 2 : i] == b[j - 2 : j][::-1]:
            ways.append(cost[i - 2, j - 2] + 1)
        cost[i, j] = min(ways)
    return int(cost[-1, -1])


def test_against_all_pairs_by_the_table_of_distances(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 1000)
    draw = random.Random(1)
    found = 0
    for _ in range(10):
        names = sorted({"".join(draw.choice("abc") for _ in range(draw.randint(3, 7))) for _ in range(40)})
        draw.shuffle(names)
        counts = [20 + n if n % 2 else 1 for n in range(len(names))]
        expected = set()
        for rare, common in itertools.product(range(0, len(names), 2), range(1, len(names), 2)):
            a, b = names[rare], names[common]
            swap = len(a) == len(b) and sorted(a) == sorted(b)
            long = min(len(a), len(b)) >= (5 if len(a) == len(b) and not swap else 4)
            if distance(a, b) == 1 and long and (swap or a[0] == b[0]):
                expected.add((a, b, common))
        best = {a: max(c for x, _, c in expected if x == a) for a, _, _ in expected}
        assert set(pairs(labels(**dict(zip(names, counts, strict=True))))) == {(a, names[c]) for a, c in best.items()}
        found += len(best)
    assert found > 20


def test_few_pairs_of_many_names_are_compared(monkeypatch):
    """2,000 names of which any two differ in one character: a million pairs of a rare and a frequent one."""
    calls, compare = [], module._one_slip
    monkeypatch.setattr(module, "_one_slip", lambda a, b: calls.append(1) or compare(a, b))
    names = [f"kinds of {chr(0x4E00 + n)}" for n in range(2000)]
    counts = [20 if n < 1000 else 1 for n in range(2000)]
    rows = [[c] for c, count in enumerate(counts) for _ in range(count)]
    assert near_names(Labels.from_lists(rows, names)) == []
    assert 0 < len(calls) <= 40_000


@pytest.fixture
def part(tmp_path):
    lines = ["image,label"]
    for row in range(41):
        (tmp_path / f"{row:02d}.jpg").touch()
        lines.append(f"{row:02d}.jpg,{'preson' if row == 5 else 'person'}")
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    return DataPart(images=str(tmp_path), labels=str(tmp_path / "labels.csv"))


def test_training_and_inspection_tell(part):
    said = []
    load_split(part, SelectPart(), said.append)
    [line] = said
    assert line.startswith(f"{part.labels}: 1 class may be misspelt: 'preson' (1 label) beside 'person' (40); ")
    assert line in pluralis("inspect", "--images", part.images, "--labels", part.labels, "--no-files").splitlines()


def test_stated_classes_are_meant(part):
    said = []
    part.options["classes"] = ["person", "preson"]
    load_split(part, SelectPart(), said.append)
    assert said == []


def test_examples():
    assert doctest.testmod(module) == (0, 1)
