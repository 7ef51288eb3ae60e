"""Images in tar files: found and read where they lie, labels from beside them, hostile archives refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from pluralis.data import read
from pluralis.data.dataset import require_files
from pluralis.data.images import ImageFiles, decode
from pluralis.data.loader import Loader
from pluralis.data.shard_images import ShardImages, pictures
from pluralis.data.shards import Shards, is_shards, list_shards
from pluralis.data.tar_headers import members
from pluralis.errors import DataError
from pluralis.labels import Labels
from tests.data.audit import watched


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLURALIS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "shards"


def picture(level: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (9, 7), (level, 5, 250 - level)).save(out, "PNG")
    return out.getvalue()


def pack(path: Path, files: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Three shards of three images; the label of image i is i % 4."""
    for number in range(3):
        files = {}
        for i in range(3 * number, 3 * number + 3):
            files[f"part/{i}.png"] = picture(20 * i)
            files[f"part/{i}.json"] = json.dumps({"labels": {f"c{i % 4}": 1, "never": -1}, "caption": "x"}).encode()
        pack(tmp_path / "shards" / f"{number:03}.tar", files)
    return tmp_path / "shards"


def images_of(path: str | Path) -> ShardImages:
    found = pictures(path, read("shards", path).images)
    assert isinstance(found, ShardImages)
    return found


@pytest.mark.parametrize("pattern", ["", "{000..002}.tar", "00{0..2}.tar", "{00..00}{0..2}.tar"])
def test_images_and_labels(shards: Path, pattern: str) -> None:
    path = f"{shards}/{pattern}" if pattern else str(shards)
    assert is_shards(path)
    data = read("shards", path)
    assert data.labels.ids == tuple(f"part/{i}.png" for i in range(9))
    assert data.labels.classes == ("c0", "c1", "c2", "c3", "never")
    assert [data.labels.positives(row).tolist() for row in range(9)] == [[i % 4] for i in range(9)]
    assert data.labels.summary().known_ratio == pytest.approx(2 / 5)
    images = images_of(path)
    assert images.sides(4) == (9, 7)
    assert images.name(4) == f"{shards}/001.tar/part/4.png"
    assert images.decode(4, 8)[:, 0, 0].tolist() == [80, 5, 170]
    assert images.select(np.array([8, 0])).decode(0, 8)[0, 0, 0] == 160


def test_the_loader_reads_them_like_files(shards: Path, tmp_path: Path) -> None:
    labels = Labels.from_lists([[0]] * 9, 2)
    for i in range(9):
        (tmp_path / f"{i}.png").write_bytes(picture(20 * i))
    plain = Loader(ImageFiles([tmp_path / f"{i}.png" for i in range(9)]), labels, size=8)
    wanted = torch.cat([pixels for _, pixels in plain.in_order(4)])
    for cache, workers in (("none", 0), ("none", 2), ("ram", 0), ("disk", 0)):
        loader = Loader(images_of(shards), labels, size=8, cache=cache, workers=workers)
        assert torch.equal(torch.cat([pixels for _, pixels in loader.in_order(4)]), wanted)


def test_threads_and_copies_read_the_same(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pluralis.data.shards._MOST_OPEN", 1)  # files are closed and opened all the time
    images = images_of(shards)
    rows = [i % 9 for i in range(600)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(images.content, rows)) == [picture(20 * row) for row in rows]
    assert len(images._files) == 1
    assert pickle.loads(pickle.dumps(images)).content(7) == picture(140)


def test_a_label_file_may_name_members(shards: Path) -> None:
    found = Shards(shards)
    assert found.find("./part//4.png") == ("part/4.png", shards / "001.tar" / "part" / "4.png")
    assert pictures(shards, [found.find("part/8.png")[1], found.find("part/1.png")[1]]).decode(1, 4)[0, 0, 0] == 20
    assert found.tell(found.locate(["part/8.png"]), "labels.csv").missing is None
    for trick in ("../000.tar", "/etc/passwd", "a\0", ""):
        with pytest.raises(DataError, match="refused"):
            found.find(trick)
    told = found.tell(found.locate(["part/8.png", "part/77.png"]), "labels.csv")
    with pytest.raises(DataError, match=r"labels\.csv: 1 of the listed images are missing: .*part/77\.png"):
        require_files(told)


def test_what_is_a_set_of_shards(tmp_path: Path, shards: Path) -> None:
    assert not is_shards(tmp_path)  # folders in it
    assert not is_shards(tmp_path / "nowhere")
    (shards / "readme.txt").write_text("")
    assert is_shards(shards)
    (shards / "photo.JPG").write_text("")
    assert not is_shards(shards)
    (tmp_path / "empty").mkdir()
    assert not is_shards(tmp_path / "empty")
    for path, words in (
        (f"{shards}/{{000..004}}.tar", r"2 of the 5 shards are missing: .*003\.tar, .*004\.tar"),
        (f"{shards}/{{5..2}}.tar", "names no shard"),
        (f"{shards}/{{0..9999999}}.tar", "over 100,000"),
        (f"{shards}/{{0..99999}}{{0..99999}}.tar", "over 100,000"),
        (f"{shards}/{{0..99999999999999999999}}.tar", "over 100,000"),
        (tmp_path / "empty", "holds no tar"),
    ):
        with pytest.raises(DataError, match=words):
            list_shards(path)


class TestNotes:
    def opened(self, shards: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The shards whose headers are read."""
        seen: list[str] = []

        def watch(path: Path) -> object:
            seen.append(path.name)
            return members(path)

        monkeypatch.setattr("pluralis.data.shards.members", watch)
        images_of(shards)
        return sorted(set(seen))

    def test_headers_are_read_once(self, shards: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        assert self.opened(shards, monkeypatch) == ["000.tar", "001.tar", "002.tar"]
        assert self.opened(shards, monkeypatch) == []
        assert len(list(cache.iterdir())) == 3
        os.utime(shards / "001.tar", (1, 1))
        assert self.opened(shards, monkeypatch) == ["001.tar"]

    @pytest.mark.parametrize("damage", [b"", b"hello", b"\n\n", None])
    def test_damaged_notes_are_made_again(
        self, shards: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, damage: bytes | None
    ) -> None:
        images_of(shards)
        for note in cache.iterdir():
            note.write_bytes(note.read_bytes().replace(b"512", b"513") if damage is None else damage)
        assert len(self.opened(shards, monkeypatch)) == 3
        assert images_of(shards).content(4) == picture(80)

    def test_a_cache_that_cannot_be_written(self, shards: Path, cache: Path) -> None:
        cache.parent.mkdir()
        cache.write_text("a file in its place")
        assert len(images_of(shards)) == 9

    def test_a_shard_that_changes_meanwhile(self, shards: Path) -> None:
        images = images_of(shards)
        assert images.content(0)
        for change in (lambda p: os.utime(p, (1, 1)), lambda p: os.truncate(p, 100), os.unlink):
            change(shards / "002.tar")
            with pytest.raises(DataError, match=r"002\.tar.*(has changed|cannot be read)"):
                images.content(8)
        os.truncate(shards / "000.tar", 600)  # under an open file
        with pytest.raises(DataError, match=r"000\.tar has become shorter"):
            images.content(2)


LONG = "long/" * 40 + "name ü.png"


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_tar_header(tmp_path: Path, form: int) -> None:
    name = "d" * 90 + "/" + "e" * 90 if form == tarfile.USTAR_FORMAT else LONG
    files = {"./a.png": b"1", name: b"22", "empty": b"", ".hidden": b"3", "z": b"4" * 5000}
    path = pack(tmp_path / "x.tar", files, form)
    found = members(path)
    assert [(m.name, m.size) for m in found] == [("a.png", 1), (name, 2), ("empty", 0), ("z", 5000)]
    content = path.read_bytes()
    assert content[found[1].offset : found[1].offset + 2] == b"22"
    with tarfile.open(path) as tar:
        assert [m.offset_data for m in tar if m.name != ".hidden"] == [m.offset for m in found]


def test_folders_are_passed_over_and_large_numbers_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        for name in (".", "a", "a/b"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.uid = tarfile.DIRTYPE, 2**40
            tar.addfile(entry)
    assert members(tmp_path / "x.tar") == []
    with open(tmp_path / "big.tar", "wb") as file:  # a hole of 9 GiB, whose size is written in binary
        entry = tarfile.TarInfo("big.png")
        entry.size = 9 * 2**30
        file.write(entry.tobuf(tarfile.GNU_FORMAT))
        file.truncate(512 + entry.size + 1024)
    assert members(tmp_path / "big.tar") == [("big.png", 512, 9 * 2**30)]


def header(name: str = "a.png", size: int = 0, form: int = tarfile.GNU_FORMAT, **facts: object) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.size = size
    for key, value in facts.items():
        setattr(entry, key, value)
    return entry.tobuf(form)


def summed(block: bytes) -> bytes:
    """A header with its checksum put right."""
    total = sum(block[:148]) + sum(block[156:512]) + 256
    return block[:148] + b"%06o\0 " % total + block[156:]


END = bytes(1024)
BODY = b"x" * 512


def pax(records: bytes, kind: bytes = b"x") -> bytes:
    return header("pax", len(records), type=kind) + records + bytes(-len(records) % 512)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "ends too early"),
    "text": (b"hello " * 200, "is no plain tar archive"),
    "gzip": (b"\x1f\x8b\x08" + bytes(range(256)) * 4, "packed with gzip"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(range(256)) * 4, "packed with zstd"),
    "zip": (b"PK\3\4" + bytes(range(256)) * 4, "is no plain tar archive"),
    "a pickle": (b"\x80\x04cos\nsystem\n(S'touch owned'\ntR." + bytes(600), "is no plain tar archive"),
    "parent": (header("../a.png") + END, "steps out"),
    "parent in the middle": (header("a/../../b.png") + END, "steps out"),
    "windows parent": (header("a\\..\\..\\b.png") + END, "steps out"),
    "absolute": (header("/etc/passwd") + END, "absolute"),
    "windows drive": (header("C:\\x.png") + END, "absolute"),
    "no name": (header("") + END, "names no file"),
    "long part": (pax(b"270 path=" + b"a" * 260 + b"\n") + header("x") + END, "too long"),
    "parent in an extended header": (pax(b"17 path=../a.png\n") + header("x") + END, "steps out"),
    "absolute in a long name": (header("L", 6, type=b"L") + b"/etc/x" + bytes(506) + header("x") + END, "absolute"),
    "not UTF-8": (summed(b"\xff\xfe" + header()[2:]) + END, "not UTF-8"),
    "link": (header(type=b"2", linkname="/etc/passwd") + END, "is a link"),
    "hard link": (header(type=b"1", linkname="a") + END, "is a hard link"),
    "character device": (header(type=b"3") + END, "is a device"),
    "block device": (header(type=b"4") + END, "is a device"),
    "pipe": (header(type=b"6") + END, "is a pipe"),
    "sparse": (header(type=b"S") + END, "is a sparse file"),
    "sparse in an extended header": (pax(b"22 GNU.sparse.major=1\n") + header() + END, "is a sparse file"),
    "half of another archive": (header(type=b"M") + END, "begins in another archive"),
    "unknown kind": (header(type=b"Q") + END, "no plain file"),
    "folder with bytes": (header("a", 512, type=b"5") + BODY + END, "has 512 bytes"),
    "beyond the end": (header(size=2**33) + BODY + END, "beyond the end"),
    "far beyond the end": (header(size=2**70) + BODY + END, "beyond the end"),
    "beyond the end in an extended header": (pax(b"21 size=999999999999\n") + header() + END, "beyond the end"),
    "a size that is none": (pax(b"11 size=-5\n") + header() + END, "no whole number"),
    "a size of a million digits": (pax(b"30009 size=" + b"9" * 29997 + b"\n") + header() + END, "no whole"),
    "negative size": (summed(header()[:124] + b"\xff" * 12 + header()[136:]) + END, "no number"),
    "size of letters": (summed(header()[:124] + b"zzzzzzzzzzz\0" + header()[136:]) + END, "no number"),
    "cut in a header": (header(size=512) + BODY + header()[:100], "ends too early"),
    "cut in a member": (header(size=600) + BODY, "beyond the end"),
    "cut behind a member": (header(size=512) + BODY, "ends too early"),
    "damaged header": (header(size=512) + BODY + header("b")[:5] + b"\1" + header("b")[6:] + END, "header is damaged"),
    "twice": (header() + header() + END, "in it twice"),
    "twice in two spellings": (header("a.png") + header("./a.png") + END, "in it twice"),
    "a second archive behind": (header() + END + header("b") + END, "follows behind the end"),
    "endless extended header": (header("pax", 2**40, type=b"x") + BODY + END, "of 1,099,511,627,776 bytes"),
    "endless name": (header("L", 2**30, type=b"L") + BODY + END, "bytes"),
    "extended header without length": (pax(b"path=x\n") + header() + END, "extended header is damaged"),
    "extended header too long": (pax(b"99 path=x\n") + header() + END, "extended header is damaged"),
    "extended header of length 0": (pax(b"0 path=x\n") + header() + END, "extended header is damaged"),
    "one name for all": (pax(b"14 path=b.png\n", b"g") + header() + header("c") + END, "to all members"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives(tmp_path: Path, kind: str) -> None:
    content, words = HOSTILE[kind]
    path = tmp_path / "shards" / "evil.tar"
    path.parent.mkdir()
    path.write_bytes(content)
    with watched() as seen, pytest.raises(DataError, match=words) as caught:
        read("shards", path)
    assert "evil.tar" in str(caught.value)
    assert str(caught.value).isprintable()
    opened = {name for event, name in seen if event == "open" and "/cache/shards/" not in name}
    assert opened == {str(path)}
    assert {event for event, _ in seen} <= {"open", "os.scandir"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["shards"]


def test_pipes_and_missing_files_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tar")
    for name in ("pipe.tar", "none.tar"):
        with pytest.raises(DataError, match="missing"):
            read("shards", tmp_path / name)
        with pytest.raises(DataError, match="not a plain file"):
            members(tmp_path / name)


def test_the_same_name_in_two_shards(shards: Path) -> None:
    pack(shards / "003.tar", {"part/1.png": picture(0)})
    with pytest.raises(DataError, match=r"'part/1\.png' is in .*000\.tar and .*003\.tar"):
        read("shards", shards)


LABELS: dict[str, tuple[dict[str, bytes], str]] = {
    "not JSON": ({"a.json": b"{"}, "a.json: is not JSON"),
    "deep": ({"a.json": b"[" * 100_000}, "is not JSON"),
    "a key twice": ({"a.json": b'{"labels": {"c": 1, "c": -1}}'}, "given twice"),
    "a class twice": ({"a.json": b'{"positives": ["c"], "negatives": ["c"]}'}, "given twice"),
    "NaN": ({"a.json": b'{"labels": {"c": NaN}}'}, "NaN"),
    "half": ({"a.json": b'{"labels": {"c": 0.5}}'}, "neither 1 present"),
    "true": ({"a.json": b'{"labels": {"c": true}}'}, "neither 1 present"),
    "zero": ({"a.json": b'{"labels": {"c": 0}}'}, "neither 1 present"),
    "huge number": ({"a.json": b'{"labels": {"c": ' + b"9" * 5000 + b"}}"}, "is not JSON"),
    "no labels": ({"a.json": b'{"caption": "x"}'}, "neither 'labels' nor"),
    "a list": ({"a.json": b"[1]"}, "neither 'labels' nor"),
    "positives as text": ({"a.json": b'{"positives": "cat"}'}, "no list"),
    "a number for a class": ({"a.json": b'{"positives": [3]}'}, "no name of a class"),
    "white space": ({"a.json": b'{"positives": ["cat "]}'}, "no name of a class"),
    "too large": ({"a.json": b" " * (2**20 + 1)}, "over the limit"),
    "json and cls": ({"a.json": b'{"positives": ["c"]}', "a.cls": b"c"}, "in another file too"),
    "cls of bytes": ({"a.cls": b"\xff"}, "not UTF-8"),
    "cls of two lines": ({"a.cls": b"cat\ndog"}, "no name of a class"),
    "nothing": ({}, "no image has labels"),
    "two images under one key": ({"a.jpg": b"", "a.cls": b"c"}, "have one key"),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_that_cannot_be_read(tmp_path: Path, kind: str) -> None:
    files, words = LABELS[kind]
    with pytest.raises(DataError, match=words) as caught:
        read("shards", pack(tmp_path / "x.tar", {"a.png": picture(0), **files}))
    assert "x.tar" in str(caught.value)
    assert str(caught.value).isprintable()


def test_classes_by_name_and_number_and_what_is_not_listed(tmp_path: Path) -> None:
    labels = {"a.cls": b"dog\n", "b.cls": b"0", "c.json": b'{"negatives": ["cat"]}'}
    path = pack(tmp_path / "x.tar", {f"{name}.png": picture(0) for name in "abcd"} | labels)
    classes = ["cat", "dog", "cow"]
    unknown = read("shards", path, classes=classes).labels.dense().tolist()
    assert unknown == [[0, 1, 0], [1, 0, 0], [-1, 0, 0], [0, 0, 0]]
    absent = read("shards", path, classes=classes, unlisted="absent").labels.dense().tolist()
    assert absent == [[-1, 1, -1], [1, -1, -1], [-1, -1, -1], [0, 0, 0]]
    with pytest.raises(DataError, match=r"x\.tar/b\.cls: there is no class '7'"):
        read("shards", pack(tmp_path / "x.tar", {"b.png": picture(0), "b.cls": b"7"}), classes=classes)
    with pytest.raises(DataError, match="unlisted"):
        read("shards", path, unlisted="perhaps")


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    def change(changes: list[tuple[int, int]], cut: int) -> bytes:
        data = bytearray(whole)
        for place, value in changes:
            data[place] = value
        return bytes(data[:cut])

    places = st.tuples(st.integers(0, 1535), st.sampled_from([0, 32, 47, 48, 49, 50, 53, 76, 120, 128, 255]))
    return st.builds(change, st.lists(places, max_size=6), st.sampled_from([len(whole), len(whole), 700, 1500, 2048]))


def only_documented_errors(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "fuzzed.tar"
    path.write_bytes(content)
    message = "fuzzed.tar"
    try:
        for member in members(path):
            assert 0 <= member.offset <= member.offset + member.size <= len(content)
            assert ".." not in member.name.split("/")
            assert not member.name.startswith("/")
    except DataError as error:
        message = str(error)
    assert "fuzzed.tar" in message
    assert message.isprintable()


WHOLE = pax(b"18 path=dir/b.png\n") + header() + header("c.png", 512) + BODY + END
FIXTURE = [HealthCheck.function_scoped_fixture]


@settings(max_examples=100, deadline=None, suppress_health_check=FIXTURE)
@example(WHOLE)
@given(damaged(WHOLE))
def test_altered_archives_open_or_raise_a_data_error(tmp_path: Path, content: bytes) -> None:
    only_documented_errors(tmp_path, content)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, suppress_health_check=FIXTURE)
@given(damaged(WHOLE))
def test_many_altered_archives(tmp_path: Path, content: bytes) -> None:
    only_documented_errors(tmp_path, content)


def test_a_broken_image_in_a_shard_is_named(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", {"a.png": picture(0)[:40], "a.cls": b"c"})
    with pytest.raises(DataError, match=r"x\.tar/a\.png.*does not decode"):
        images_of(path).decode(0, 8)
    with pytest.raises(DataError, match=r"name\.png"):
        decode("name.png", 8, b"")


def test_a_recipe_reads_images_from_shards_by_the_names_in_a_label_file(tmp_path: Path) -> None:
    """The same pictures and labels as from a folder."""
    from pluralis.config import DataPart
    from pluralis.data.source import load_source

    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(4):
        Image.new("RGB", (20, 16), (40 * number, 10, 200)).save(folder / f"{number}.png")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for path in sorted(folder.iterdir()):
            archive.add(path, path.name)
    labels = tmp_path / "labels.csv"
    labels.write_text("image,label\n0.png,dog\n2.png,car\n3.png,dog\n")
    plain = load_source(DataPart("csv", str(folder), str(labels)))
    packed = load_source(DataPart("csv", str(tmp_path / "a.tar"), str(labels)))
    assert packed.labels.ids == plain.labels.ids
    assert (packed.labels.dense() == plain.labels.dense()).all()
    for row in range(3):
        assert packed.images.sides(row) == (20, 16)
        assert packed.images.decode(row, 16).equal(plain.images.decode(row, 16))
