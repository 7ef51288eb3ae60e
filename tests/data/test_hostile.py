"""Files of strangers, by the hundred: the bad ones are named, nothing runs, nothing outside is opened."""

from __future__ import annotations

import inspect
import io
import json
import marshal
import os
import pickle
import signal
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import numpy as np
import pytest
import torch
from PIL import Image

from pluralis.checkpoint import read_snapshot
from pluralis.config import Recipe
from pluralis.data import read, read_hints
from pluralis.data.check import check_images, read_list
from pluralis.data.dataset import Dataset
from pluralis.data.formats import FORMATS, voc
from pluralis.data.images import ImageFiles, decode
from pluralis.data.loader import Loader
from pluralis.data.rows import leave_out
from pluralis.errors import DataError, PluralisError
from pluralis.features import read_features
from pluralis.labels import Labels
from pluralis.models.weights import read_weights
from tests.data.audit import CONNECTS, RUNS, watched
from tests.data.test_safe_io import BROKEN, TRICKS, root  # noqa: F401  # a fixture

CLASSES = 7


def make_folder(folder: Path, count: int, every: int) -> tuple[Dataset, set[str]]:
    """Images whose colour is their number, every so many of them broken in one way after the other."""
    folder.mkdir()
    broken, ways = set(), list(BROKEN.values())
    names = [f"{number:05}.png" for number in range(count)]
    for number, name in enumerate(names):
        if number % every == every // 2:
            (folder / name).write_bytes(ways[len(broken) % len(ways)])
            broken.add(name)
        else:
            Image.new("RGB", (8, 8), (number // 256, number % 256, 77)).save(folder / name)
    present = [[number % CLASSES] for number in range(count)]
    labels = Labels.from_lists(present, [f"c{i}" for i in range(CLASSES)], ids=names)
    return Dataset([folder / name for name in names], labels), broken


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("count", "every"), [(300, 20), pytest.param(10_000, 100, marks=pytest.mark.slow)])
def test_every_broken_image_is_named_and_no_label_moves(tmp_path: Path, count: int, every: int) -> None:
    data, broken = make_folder(tmp_path / "images", count, every)
    assert len(broken) == count // every >= 12
    before = {path: path.read_bytes() for path in data.images}
    found = check_images(ImageFiles(data.images), data.labels, tmp_path / "bad.csv", workers=2)
    assert {name for name, _, _ in found.bad} == broken == read_list(tmp_path / "bad.csv")
    assert all(name in reason for name, _, reason in found.bad)
    assert {path: path.read_bytes() for path in data.images} == before

    with pytest.raises(DataError, match=min(broken)):  # named, not replaced by another image
        list(Loader(ImageFiles(data.images), data.labels, size=8).in_order(50))
    good = leave_out(data, broken, tmp_path / "bad.csv")
    assert len(good) == count - len(broken)
    loader = Loader(ImageFiles(good.images), good.labels, size=8)
    for rows, pixels in loader.in_order(64):
        numbers = (pixels[:, 0, 0, 0].long() * 256 + pixels[:, 1, 0, 0].long()).tolist()
        assert [good.labels.id(int(row)) for row in rows] == [f"{number:05}.png" for number in numbers]
        assert [good.labels.positives(int(row)).tolist() for row in rows] == [[n % CLASSES] for n in numbers]


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def saved(write: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    def write(file: io.BytesIO) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)

    return saved(write)


def safetensors(head: object, body: bytes = b"") -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + body


def hostile_files(mark: Path) -> dict[str, bytes]:
    touch, bomb = f"touch {mark}", Bomb(mark)
    expression = f"__import__('os').system('{touch}')".encode()
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    laughs = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10 if i else "lol"}">' for i in range(10))
    return {
        **{f"pickle of protocol {p}": pickle.dumps(bomb, protocol=p) for p in (0, 2, 4, 5)},
        "torch archive": saved(lambda file: torch.save({"conv1.weight": bomb}, file)),
        "torch file of old": saved(lambda file: torch.save(bomb, file, _use_new_zipfile_serialization=False)),
        "script archive": zipped({"x/data.pkl": pickle.dumps(bomb), "x/code/__torch__.py": touch.encode()}),
        "object array": saved(lambda file: np.save(file, np.array([bomb], object), allow_pickle=True)),
        "archive of object arrays": saved(lambda file: np.savez(file, np.array([bomb], object))),
        "array header that is code": b"\x93NUMPY\x01\x00\xf6\x00" + expression.ljust(246),
        "compiled code": marshal.dumps(compile(f"import os; os.system('{touch}')", "x", "exec")),
        "python": f"import os\nos.system('{touch}')\n".encode(),
        "expression": expression,
        "shell script": f"#!/bin/sh\n{touch}\n".encode(),
        "yaml that names code": f"!!python/object/apply:os.system ['{touch}']\n".encode(),
        "json that names code": json.dumps({"py/reduce": [{"py/function": "os.system"}, [touch]]}).encode(),
        "checkpoint that names code": json.dumps(
            {"body": {"meta": {"__class__": "os.system", "args": [touch], "_target_": "os.system"}}, "sha256": "0"}
        ).encode(),
        "toml that names code": f'[method]\nname = "os.system"\nparams = {{command = "{touch}"}}\n'.encode(),
        "deep json": b"[" * 100_000,
        "json of a huge number": b'{"images": ' + b"9" * 100_000 + b"}",
        "json with a key twice": b'{"images": [], "images": []}',
        "xml of entities": f"<!DOCTYPE a [{laughs}]><annotations>&l9;</annotations>".encode(),
        "xml of another file": b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotations>&x;</annotations>',
        "xml with a stylesheet": b'<?xml-stylesheet href="http://127.0.0.1/x.xsl"?><annotations/>',
        "formulas": f"image,label\n=cmd|'/c {touch}'!A1,+1+cmd\n@SUM(1),-2\n".encode(),
        "postscript": f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%{touch}) (w) file\n".encode(),
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="http://127.0.0.1/x"/></svg>',
        "safetensors with a huge header": struct.pack("<Q", 2**60) + b"{}",
        "safetensors beyond its end": safetensors({"a": {**entry, "data_offsets": [0, 2**40]}}),
        "safetensors that overlap": safetensors({"a": entry, "b": entry}, bytes(4)),
        "safetensors of a negative place": safetensors({"a": {**entry, "data_offsets": [-4, 0]}}),
        "safetensors that name code": safetensors({"__metadata__": {"class": touch}, "a": entry}, bytes(3)),
        "safetensors of a huge shape": safetensors({"a": {**entry, "shape": [2**62, 2**62]}}, bytes(4)),
        "archive that leads outside": zipped({"../../x.py": touch.encode(), "/etc/x": b""}),
        "nothing": b"",
        "zeros": bytes(4096),
    }


HOSTILE = list(hostile_files(Path("mark")))


def doors(folder: Path, content: bytes) -> list[Callable[[], object]]:
    """Every way by which a file comes in, each with the content under a fitting name."""
    for name in ("x", "x.pt", "x-0a1b2c3d.pth", "x.safetensors", "x.json", "x.tar", "recipe.toml"):
        (folder / name).write_bytes(content)
    for name in ("images", "labels", "labels_obs"):
        (folder / f"formatted_train_{name}.npy").write_bytes(content)
    for name in ("ImageSets/Main/cat_train.txt", "Annotations/a.xml", "JPEGImages/a.jpg"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return [
        lambda: read_snapshot(folder / "x"),
        lambda: read_features(folder / "x"),
        lambda: Recipe.load(folder / "recipe.toml"),
        *(partial(read_weights, folder / name) for name in ("x.pt", "x-0a1b2c3d.pth", "x.safetensors")),
        *data_doors(folder),
    ]


def data_doors(folder: Path) -> list[Callable[[], object]]:
    """Those for images and labels."""
    ways: list[Callable[[], object]] = [
        lambda: decode(folder / "x", 16),
        lambda: read_list(folder / "x"),
        lambda: voc.areas(folder, Labels.from_lists([[0]], ["cat"], ids=["a"])),
        lambda: read("voc", folder, source="xml", split="all", unlisted="unknown"),
        lambda: read("openimages", folder / "x", images=folder, names=folder / "x"),
        lambda: read_hints(folder / "x", Dataset([folder / "x"], Labels.from_lists([[0]], ["cat"], ids=["a"]))),
    ]
    for name, entry in FORMATS.items():
        options = {} if name == "voc" else {"images": folder, "unlisted": "unknown"}  # lists say what is absent
        options = {key: value for key, value in options.items() if key in inspect.signature(entry.read).parameters}
        places = {"npy": folder, "voc": folder, "cub": folder, "nus": folder, "shards": folder / "x.tar"}
        ways.append(partial(read, name, places.get(name, folder / "x"), **options))
    return ways


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is imported at the first call is imported: it is not the files' doing."""
    folder = tmp_path_factory.mktemp("warm")
    for way in doors(folder, b"<annotations/>"):
        with suppress(PluralisError):
            way()
    file, _ = put_name(folder, "parquet", "x")
    read("parquet", file, images=folder)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("kind", HOSTILE)
def test_no_door_runs_a_hostile_file(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLURALIS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "in").mkdir()
    ways = doors(tmp_path / "in", hostile_files(tmp_path / "ran")[kind])
    refused = []
    with watched() as seen:
        for way in ways:
            try:
                way()
            except PluralisError as error:
                refused.append(str(error))
    assert len(refused) >= len(ways) - 4  # an empty list of entries, say, is a list
    assert not {event for event, _ in seen} & {*RUNS, *CONNECTS}
    assert not [name for event, name in seen if event == "open" and name.startswith("/etc")]
    assert not (tmp_path / "ran").exists()


def test_the_bombs_are_live(tmp_path: Path) -> None:
    with watched() as seen:
        pickle.loads(hostile_files(tmp_path / "ran")["pickle of protocol 4"])
    assert (tmp_path / "ran").exists()
    assert {"os.system", "pickle.find_class"} <= {event for event, _ in seen}


def with_name(format: str, name: str) -> bytes:
    """A label file that names one image."""
    quoted = '"' + name.replace('"', '""') + '"'
    text = {
        "csv": f"image,label\n{quoted},cat\n",
        "jsonl": json.dumps({"image": name, "positives": ["cat"]}) + "\n",
        "coco": json.dumps(
            {
                "images": [{"id": 1, "file_name": name}],
                "categories": [{"id": 1, "name": "cat"}],
                "annotations": [{"id": 1, "image_id": 1, "category_id": 1}],
            }
        ),
        "fiftyone": json.dumps({"classes": ["cat"], "labels": {name: 0}}),
        "lvis": json.dumps(
            {
                "images": [{"id": 1, "file_name": name, "neg_category_ids": [1], "not_exhaustive_category_ids": []}],
                "categories": [{"id": 1, "name": "cat"}],
                "annotations": [],
            }
        ),
        "openimages": f"ImageID,Source,LabelName,Confidence\n{quoted},verification,cat,1\n",
        "labelstudio": json.dumps(
            [{"data": {"image": f"/data/local-files/?d={quote(name, errors='surrogatepass')}"}, "annotations": []}]
        ),
        "cvat": f"<annotations><image id='0' name={quoteattr(name)}/></annotations>",
        "nus": f"{name}\n",
    }[format]
    return text.encode("utf-8", "surrogatepass")


def put_name(folder: Path, format: str, name: str) -> tuple[Path, dict[str, object]]:
    """Labels that name one image, and what their reader has to be told."""
    place = folder / "labels"
    options: dict[str, dict[str, object]] = {"csv": {}, "jsonl": {}, "lvis": {}, "openimages": {"suffix": ""}}
    if format == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"image": [name], "label": ["cat"]}), place)
    elif format == "npy":
        place.mkdir()
        np.save(place / "formatted_train_images.npy", np.array([name]))
        np.save(place / "formatted_train_labels.npy", np.array([[1]]))
    elif format == "nus":
        for part in ("ImageList", "Groundtruth/TrainTestLabels"):
            (place / part).mkdir(parents=True)
        (place / "ImageList" / "TrainImagelist.txt").write_bytes(with_name(format, name))
        (place / "Groundtruth" / "TrainTestLabels" / "Labels_cat_Train.txt").write_text("1\n")
    else:
        place.write_bytes(with_name(format, name))
        return place, options.get(format, {"unlisted": "unknown"})
    return place, {}


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    "format", ["csv", "jsonl", "coco", "fiftyone", "lvis", "openimages", "labelstudio", "cvat", "nus", "npy", "parquet"]
)
@pytest.mark.parametrize("trick", TRICKS)
def test_no_reader_opens_what_lies_outside(root: Path, format: str, trick: str) -> None:  # noqa: F811
    if (format, trick) == ("parquet", "lone surrogate"):
        pytest.skip("Parquet cannot hold half a character")
    file, options = put_name(root.parent, format, TRICKS[trick])
    with watched() as seen, pytest.raises(PluralisError) as caught:
        read(format, file, images=root, **options)
    inside = os.path.join(os.path.realpath(root), "")
    opened = {os.path.realpath(name) for event, name in seen if event == "open"}
    assert all(name.startswith((inside, str(file))) for name in opened)
    assert "labels" in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


ENTITY = "<!DOCTYPE annotation [{}]><annotation><object><name>{}</name></object></annotation>"
BOMBS = {
    "a billion laughs": ENTITY.format(
        "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10 if i else "lol"}">' for i in range(12)), "&l11;"
    ),
    "quadratic": ENTITY.format(f'<!ENTITY x "{"x" * 50_000}">', "&x;" * 50_000),
    "a loop": ENTITY.format('<!ENTITY a "&b;"><!ENTITY b "&a;">', "&a;"),
    "a file": ENTITY.format('<!ENTITY x SYSTEM "file:///etc/passwd">', "&x;"),
    "an endless file": ENTITY.format('<!ENTITY x SYSTEM "file:///dev/zero">', "&x;"),
    "the network": ENTITY.format('<!ENTITY x SYSTEM "http://127.0.0.1:9/x">', "&x;"),
    "parameters": ENTITY.format('<!ENTITY % x SYSTEM "http://127.0.0.1:9/x.dtd"> %x;', "a"),
    "another declaration": '<!DOCTYPE annotation SYSTEM "http://127.0.0.1:9/x.dtd"><annotation>&x;</annotation>',
    "in an attribute": '<!DOCTYPE a [<!ENTITY x "y">]><annotation a="&x;"/>',
    "in other bytes": ENTITY.format('<!ENTITY x "y">', "&x;").encode("utf-16"),
    "default values": f'<!DOCTYPE a [<!ATTLIST b c CDATA "{"x" * 50_000}">]><a>{"<b/>" * 50_000}</a>',
    "a long tag": "<annotations><image " + " ".join(f"a{i}=''" for i in range(200_000)) + "/></annotations>",
    "a long comment": f"<annotations><!--{'x' * (4 << 20)}--></annotations>",
    "a long comment before all": f"<!--{'x' * (4 << 20)}--><annotations/>",
    "a long name": f"<annotations><{'x' * (4 << 20)}/></annotations>",
    "deep": f"<annotations>{'<a>' * 1_000_000}",
    "many names": f"<annotations>{''.join(f'<a{i}/>' for i in range(100_000))}</annotations>",
}


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("door", ["voc boxes", "voc labels", "cvat"])
@pytest.mark.parametrize("kind", BOMBS)
def test_xml_bombs_are_refused_at_once(tmp_path: Path, kind: str, door: str) -> None:
    content = BOMBS[kind] if isinstance(BOMBS[kind], bytes) else BOMBS[kind].encode()  # type: ignore[attr-defined]
    for name in ("Annotations/a.xml", "annotations.xml", "ImageSets/Main/cat_train.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    labels = Labels.from_lists([[0]], ["cat"], ids=["a"])
    start = time.process_time()
    doors = {
        "voc boxes": lambda: voc.areas(tmp_path, labels),
        "voc labels": lambda: read("voc", tmp_path, source="xml", split="all", unlisted="unknown"),
        "cvat": lambda: read("cvat", tmp_path, images=tmp_path, unlisted="unknown"),
    }
    with watched() as seen, pytest.raises(DataError, match=r"\.xml"):
        doors[door]()
    assert time.process_time() - start < 0.1
    assert all(name.endswith(".xml") for event, name in seen if event == "open")
    assert not {event for event, _ in seen} & {*RUNS, *CONNECTS}


def test_no_door_waits_for_a_pipe(tmp_path: Path) -> None:
    """Opening a pipe that nobody writes to would hang for ever."""
    doors(tmp_path, b"")
    for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
        path.unlink()
        os.mkfifo(path)

    def too_long(*_: object) -> None:
        raise AssertionError("a door waits for a pipe")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(10)
    try:
        for way in data_doors(tmp_path):
            with pytest.raises(PluralisError):
                way()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", ["huge png", "huge bmp", "huge gif", "webp of a huge canvas"])
def test_a_huge_image_is_refused_without_taking_memory(tmp_path: Path, kind: str) -> None:
    (tmp_path / "bomb.png").write_bytes(BROKEN[kind])
    program = """if True:
        import re, sys
        from pathlib import Path
        from PIL import Image
        from pluralis.data.safe_io import open_image
        from pluralis.errors import DataError
        Image.init()
        # Not ru_maxrss, which a process takes over from the one that started it: from here it would never grow.
        peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
        before = peak()
        try:
            open_image(sys.argv[1])
        except DataError as error:
            print(peak() - before, error)
    """
    out = subprocess.check_output([sys.executable, "-c", program, tmp_path / "bomb.png"], text=True)
    assert "bomb.png" in out
    assert int(out.split()[0]) < 64 * 1024


@pytest.mark.slow
def test_a_million_rows_of_eighty_classes_open(tmp_path: Path) -> None:
    """The labels themselves; what a reader takes that also finds a million files, benchmarks/huge_labels.py tells."""
    program = """if True:
        import re, sys, time
        from pathlib import Path
        import numpy as np
        from pluralis.labels import Labels
        rng = np.random.default_rng(0)
        signed = np.zeros((1_000_000, 80), np.int8)
        signed[np.arange(1_000_000)[:, None], rng.integers(0, 80, (1_000_000, 3))] = 1
        np.save(sys.argv[1], signed)
        del signed
        start = time.process_time()
        labels = Labels.from_dense(np.load(sys.argv[1], mmap_mode="r"))
        labels.summary()
        seconds = time.process_time() - start
        peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
        print(seconds, int(peak) / 2**20, len(labels))
    """
    command = [sys.executable, "-c", program, tmp_path / "labels.npy"]
    seconds, gibibytes, rows = map(float, subprocess.check_output(command, text=True).split())
    assert rows == 1_000_000
    assert seconds < 5
    assert gibibytes < 1


LINKED = {  # a file that a reader finds by itself in a folder, and what else has to be there
    "voc": ("ImageSets/Main/cat_train.txt", [], {}),
    "voc of one list": ("ImageSets/Main/train.txt", ["Annotations/a.xml"], {"source": "xml", "unlisted": "absent"}),
    "voc of boxes": ("Annotations/a.xml", [], {"source": "xml", "split": "all", "unlisted": "absent"}),
    "cub": ("images.txt", ["attributes/attributes.txt"], {}),
    "cub of attributes": ("attributes/attributes.txt", ["images.txt"], {}),
    "cub of splits": ("train_test_split.txt", ["images.txt", "attributes/attributes.txt"], {}),
    "nus": ("ImageList/TrainImagelist.txt", [], {}),
    "nus of labels": ("Groundtruth/TrainTestLabels/Labels_cat_Train.txt", ["ImageList/TrainImagelist.txt"], {}),
    "npy": ("formatted_train_images.npy", ["formatted_train_labels.npy"], {}),
    "coco": ("annotations/instances_train2014.json", ["train2014/a.jpg"], {"unlisted": "absent"}),
    "openimages": ("train-annotations-human-imagelabels.csv", ["train/a.jpg"], {}),
    "cvat": ("annotations.xml", ["images/a.jpg"], {"unlisted": "absent"}),
    "fiftyone": ("labels.json", ["data/a.jpg"], {"unlisted": "absent"}),
    "imagefolder": ("cat/a.jpg", [], {}),
    "shards": ("a.tar", [], {}),
}
LINKS = [(case, "a file") for case in LINKED]
LINKS += [(case, "its folder") for case in LINKED if "/" in LINKED[case][0] and case != "voc of boxes"]


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(("case", "way"), LINKS)
def test_no_reader_follows_a_link_out_of_its_folder(tmp_path: Path, case: str, way: str) -> None:
    """Label files, too: an unpacked archive may hold links to anything."""
    place, others, options = LINKED[case]
    top, secret = tmp_path / "top", tmp_path / "outside" / Path(place).name
    for path in (secret, *(top / name for name in others)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1 secret\n")
    link = top / place
    if way == "a file" or any((top / name).parent == link.parent for name in others):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(secret)
    else:
        link.parent.parent.mkdir(parents=True, exist_ok=True)
        link.parent.symlink_to(secret.parent)
    with watched() as seen, pytest.raises(PluralisError, match=r"outside|link to a folder"):
        read(case.partition(" ")[0], top, **options)
    opened = {os.path.realpath(name) for event, name in seen if event == "open"}
    assert str(secret) not in opened
