"""The page of missing labels: those of the CSV file, with the right pictures, and nothing that a name could run."""

from __future__ import annotations

import base64
import colorsys
import io
import tarfile
from collections import defaultdict
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pluralis import missing_page
from pluralis.data.images import ImageFiles
from pluralis.data.loader import Images, TensorImages
from pluralis.data.shard_images import pictures
from pluralis.errors import DataError
from pluralis.labels import Labels
from pluralis.missing_file import rank, ranked
from pluralis.missing_page import write_page

CLASSES = ("ant", "bee", "cat")


@dataclass
class Card:
    label: str
    text: str
    picture: bytes | None


@dataclass
class Page(HTMLParser):
    """What a browser makes of a page: headings, text, cards, and the names of all tags and attributes."""

    heads: list[str] = field(default_factory=list)
    text: str = ""
    cards: list[Card] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "h2":
            self.heads.append("")
        if tag == "figure":
            self.cards.append(Card(self.heads[-1].rpartition(":")[0], "", None))
        if tag == "img":
            kind, _, content = str(dict(attrs)["src"]).partition(",")
            assert kind == "data:image/jpeg;base64"
            self.cards[-1].picture = base64.b64decode(content, validate=True)
        if tag == "br":
            self.handle_data("\n")
        elif tag not in ("img", "meta"):
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if "h2" in self.stack:
            self.heads[-1] += data
        if "figure" in self.stack:
            self.cards[-1].text += data


def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    page.close()
    assert not page.stack
    return page


def colour(row: int) -> tuple[int, ...]:
    """One that tells a row from any other of twelve, also as a JPEG."""
    return tuple(round(255 * part) for part in colorsys.hsv_to_rgb(row / 12, 1, 1))


def near(picture: bytes | None, row: int) -> bool:
    assert picture is not None
    mean = np.asarray(Image.open(io.BytesIO(picture))).mean((0, 1))
    return bool(np.abs(mean - colour(row)).max() < 12)


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    folder = tmp_path / "photos"
    folder.mkdir()
    for row in range(12):
        Image.new("RGB", (400, 200), colour(row)).save(folder / f"{row:02d}.jpg", comment=b"not for the page")
    return ImageFiles([folder / f"{row:02d}.jpg" for row in range(12)])


@pytest.fixture
def labels() -> Labels:
    known = np.zeros((12, 3), int)
    known[np.arange(12), np.arange(12) % 3] = 1
    known[4, 2] = -1
    return Labels.from_dense(known, CLASSES, [f"{row:02d}.jpg" for row in range(12)])


@pytest.fixture
def chances() -> torch.Tensor:
    return torch.rand(12, 3, generator=torch.Generator().manual_seed(0))


def suggested(labels: Labels, chances: torch.Tensor, least: float) -> dict[str, list[tuple[str, str]]]:
    """By class, chance and image, as the CSV file has them."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for rows, columns, values in ranked(rank(labels, chances, least), 3):
        for row, column, chance in zip(rows, columns, values, strict=True):
            found[CLASSES[column]].append((f"{chance:.3f}", labels.id(row)))
    return found


def test_by_class_the_most_likely_first_with_what_is_written(
    files: ImageFiles, labels: Labels, chances: torch.Tensor, tmp_path: Path
) -> None:
    rows = np.arange(12)
    parts: list[Images] = [files.select(rows[:5]), files.select(rows[5:])]  # as rows trained on and held out
    count = write_page(tmp_path / "new" / "page.html", "Mine", parts, labels, chances, 0.3, "by guessing")
    page, expected = read(tmp_path / "new" / "page.html"), suggested(labels, chances, 0.3)
    assert count == sum(map(len, expected.values())) == len(page.cards) > 10
    assert page.heads == [f"{name}: {len(expected[name])} suggested" for name in CLASSES]
    assert f"{count} of 23 unknown labels have a chance of at least 0.3 by guessing." in page.text
    assert "left out" not in page.text
    found = defaultdict(list)
    for card in page.cards:
        head, *known = card.text.split("\n")
        chance, name = head.split(" ")
        found[card.label].append((chance, name))
        row = int(name[:2])
        assert near(card.picture, row)
        assert known == [f"written: {CLASSES[row % 3]}"] + ["absent: cat"] * (row == 4)
    assert found == expected


def test_a_picture_is_small_upright_and_bare(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn
    Image.new("RGB", (400, 200), "red").save(tmp_path / "a.jpg", exif=turned, comment=b"secret place")
    Image.new("L", (20, 10), 255).save(tmp_path / "b.png")
    labels = Labels.from_dense([[0], [0]], ["x"], ["a.jpg", "b.png"])
    images = ImageFiles([tmp_path / "a.jpg", tmp_path / "b.png"])
    write_page(tmp_path / "page.html", "Mine", [images], labels, torch.tensor([[0.9], [0.8]]))
    first, second = (card.picture for card in read(tmp_path / "page.html").cards)
    assert first is not None
    assert second is not None
    assert Image.open(io.BytesIO(first)).size == (80, 160)
    assert Image.open(io.BytesIO(second)).size == (20, 10)  # the page enlarges it
    assert b"secret" not in first


def test_what_there_is_no_room_for_is_counted(
    files: ImageFiles, labels: Labels, chances: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, expected = tmp_path / "page.html", suggested(labels, chances, 0.0)

    def shown() -> tuple[Page, dict[str, list[str]]]:
        assert write_page(out, "Mine", [files], labels, chances, 0.0) == 23
        page, found = read(out), defaultdict(list)
        for card in page.cards:
            found[card.label].append(card.text.split()[0])
        for name in CLASSES:
            assert found[name] == [chance for chance, _ in expected[name]][: len(found[name])]
        assert page.heads == [f"{name}: {len(expected[name])} suggested" for name in CLASSES]
        assert (
            f"{len(page.cards)} are shown here, the most likely of each class; {23 - len(page.cards)} are" in page.text
        )
        return page, found

    monkeypatch.setattr(missing_page, "A_CLASS", 2)
    page, found = shown()
    assert [len(found[name]) for name in CLASSES] == [2, 2, 2]
    assert f"2 are shown, the most likely first; {len(expected['ant']) - 2} are left out." in page.text
    monkeypatch.setattr(missing_page, "A_CLASS", 99)
    monkeypatch.setattr(missing_page, "IN_ALL", 7)
    assert [len(shown()[1][name]) for name in CLASSES] == [3, 2, 2]  # no class is left to the end
    monkeypatch.setattr(missing_page, "IN_ALL", 99)
    monkeypatch.setattr(missing_page, "BYTES", 5000)
    page, _ = shown()
    assert 3 <= len(page.cards) < 10
    frame = len(out.read_text()) - sum(len(base64.b64encode(card.picture or b"")) for card in page.cards)
    assert len(out.read_text()) < 5000 + frame


def test_names_are_text(tmp_path: Path) -> None:
    evil = ["<script>alert(1)</script>\"'>", '"><img src=x onerror=alert(2)>', "a" * 5000, "bell\a\ud800"]
    names = ["<script>.png", "' onload='x.png", "&lt;b&gt;.png", "</main><script>.png"]
    rows = [[0, 1, 1, 1], [1, 0, 1, -1], [0, 0, 1, 0], [1, 1, 0, 0]]
    (tmp_path / "<script>.png").write_text("<script>alert(3)</script>")  # does not decode, and says so
    images = ImageFiles([tmp_path / name.replace("/", "_") for name in names])
    labels = Labels.from_dense(rows, evil, names)
    write_page(tmp_path / "page.html", "<script>Mine", [images], labels, torch.full((4, 4), 0.75), how="<script>")
    page = read(tmp_path / "page.html")
    assert not page.tags & {"script", "img", "b>"}
    assert not {name for name in page.attributes if name.startswith("on") or name == "src"}
    assert page.heads[0] == f"{evil[0]}: 2 suggested"
    assert page.heads[2].startswith("aaaa")
    assert len(page.heads[2]) < 200
    assert all(any(name in card.text for card in page.cards) for name in names)
    assert "bell␇\ufffd" in page.text
    assert "default-src 'none'" in (tmp_path / "page.html").read_text()


def test_a_picture_that_does_not_decode_has_its_reason(files: ImageFiles, labels: Labels, tmp_path: Path) -> None:
    files.paths[3].write_bytes(files.paths[3].read_bytes()[:300])
    files.paths[5].unlink()
    write_page(tmp_path / "page.html", "Mine", [files], labels, torch.ones(12, 3))
    cards = read(tmp_path / "page.html").cards
    assert len(cards) == 23
    for card in cards:
        bad = next((row for row in (3, 5) if f"{row:02d}.jpg\n" in card.text), None)
        assert (card.picture is None) == (bad is not None)
        if bad is not None:
            assert {3: "does not decode", 5: "is not there"}[bad] in card.text
            assert f"{bad:02d}.jpg" in card.text.partition("does not" if bad == 3 else "is not")[0]


def test_pictures_in_shards_and_in_memory(files: ImageFiles, labels: Labels, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "some.tar", "w") as tar:
        for path in files.paths:
            tar.add(path, path.name)
    shards = pictures(tmp_path / "some.tar", [Path(path.name) for path in files.paths])
    pixels = torch.tensor([colour(row) for row in range(12)], dtype=torch.uint8)
    tensors = TensorImages(pixels[:, :, None, None].expand(12, 3, 10, 30))
    for images, size in ((shards, (160, 80)), (tensors, (30, 10))):
        write_page(tmp_path / "page.html", "Mine", [images], labels, torch.ones(12, 3))
        cards = read(tmp_path / "page.html").cards
        assert len(cards) == 23
        for card in cards:
            assert near(card.picture, int(card.text.split()[1][:2]))
            assert Image.open(io.BytesIO(card.picture or b"")).size == size
    write_page(tmp_path / "page.html", "Mine", [TensorImages(torch.rand(12, 5))], labels, torch.ones(12, 3))
    assert "row 0 is no picture of three colours, but (5,) torch.float32" in read(tmp_path / "page.html").text


def test_an_id_that_is_no_file_name_has_the_name_beside_it(files: ImageFiles, tmp_path: Path) -> None:
    many = Labels.from_dense([[0, *[1] * 15, *[-1] * 13]], [f"c{column}" for column in range(29)], ["391895"])
    write_page(tmp_path / "page.html", "Mine", [files.select([7])], many, torch.ones(1, 29))
    [card] = read(tmp_path / "page.html").cards
    head, written, absent = card.text.split("\n")
    assert head == "1.000 391895 (07.jpg)"
    assert written == f"written: {', '.join(f'c{column}' for column in range(1, 13))} and 3 more"
    assert absent.endswith("c27 and 1 more")


def test_nothing_likely(files: ImageFiles, labels: Labels, tmp_path: Path) -> None:
    assert write_page(tmp_path / "page.html", "Mine", [files], labels, torch.zeros(12, 3)) == 0
    page = read(tmp_path / "page.html")
    assert page.cards == []
    assert "0 of 23 unknown labels" in page.text


def test_whole_or_not_at_all(files: ImageFiles, labels: Labels, tmp_path: Path) -> None:
    out = tmp_path / "out" / "page.html"
    out.parent.mkdir()
    out.write_text("old")
    seen: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_page(out, "Mine", [files], labels, torch.ones(12, 3), progress=stop)
    assert seen == [(done, 23) for done in range(1, 6)]
    assert out.read_text() == "old"
    (tmp_path / "out" / "folder.html").mkdir()
    with pytest.raises(DataError, match=r"folder\.html: cannot be written"):
        write_page(tmp_path / "out" / "folder.html", "Mine", [files], labels, torch.ones(12, 3))
    assert sorted(path.name for path in out.parent.iterdir()) == ["folder.html", "page.html"]
