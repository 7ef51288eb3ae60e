"""The page of `pluralis relabel`: pictures of the labels that are probably missing, for somebody to look at.

One HTML file that holds everything it shows; all text passes through `html.escape`, and nothing is loaded or run.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Sequence
from html import escape
from itertools import zip_longest
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from pluralis.data.images import ImageFiles
from pluralis.data.loader import Images, Progress
from pluralis.data.shard_images import ShardImages
from pluralis.data.whole_file import make_folder, whole_file
from pluralis.errors import DataError, visible
from pluralis.html_page import document, embedded
from pluralis.labels import Labels
from pluralis.missing_file import in_words, rank, ranked

SIDE = 160  # pixels of the longer side of a picture
A_CLASS, IN_ALL = 100, 2000  # pictures: more are looked at by nobody
BYTES = 16_000_000  # of all pictures with their captions; headings come on top
_NAMES, _LETTERS = 12, 120  # of a caption: names in a list, letters of a name


def write_page(
    path: Path,
    title: str,
    images: Sequence[Images],
    labels: Labels,
    found: Tensor,
    least: float = 0.5,
    how: str = "",
    progress: Progress | None = None,
) -> int:
    """Show the unknown labels whose chance `found` [N, C] is at least `least`, by class, and give their number.

    images: the pictures of the rows, of one part of them after the other. `how` says what the chances rest on.
    Every class has its most likely labels on the page before any has more than others. A picture that does not decode
    has its reason in its place.
    """
    keys = rank(labels, found, least)
    counts: Counter[int] = Counter()
    first: defaultdict[int, list[tuple[int, float]]] = defaultdict(list)  # row and chance, by class
    for rows, columns, chances in ranked(keys, len(labels.classes)):
        counts.update(columns)
        for row, column, chance in zip(rows, columns, chances, strict=True):
            if len(first[column]) < A_CLASS:
                first[column].append((row, chance))
    cards = _cards(images, labels, first, progress)
    shown = sum(map(len, cards.values()))
    left = len(keys) - shown
    lead = in_words(len(keys), labels, least, how)
    more = f" {shown:,} are shown here, the most likely of each class; {left:,} are left out." if left else ""
    links = " · ".join(
        f"<a href=#c{column}>{_name(labels, column)}</a> {counts[column]:,}" for column in sorted(counts)
    )
    sections = "".join(_section(labels, column, counts[column], cards[column]) for column in sorted(counts))
    body = f"<h1>{escape(title)}</h1><p class=lead>{escape(lead)}.{more}</p><p class=links>{links}</p>{sections}"
    make_folder(path.parent)
    with whole_file(path) as file:
        file.write_bytes(document(title, body, _STYLE).encode(errors="replace"))
    return len(keys)


def _cards(
    images: Sequence[Images],
    labels: Labels,
    first: dict[int, list[tuple[int, float]]],
    progress: Progress | None,
) -> defaultdict[int, list[str]]:
    """By class, one text for each label that there is room for: first the likeliest of every class, and so on."""
    cards: defaultdict[int, list[str]] = defaultdict(list)
    starts = np.cumsum([0, *map(len, images)])
    pictures: dict[int, str] = {}  # by row: an image may lack several labels
    places = [[(column, *found) for found in first[column]] for column in sorted(first)]
    turns = [place for turn in zip_longest(*places) for place in turn if place][:IN_ALL]
    size = 0
    for done, (column, row, chance) in enumerate(turns):
        part = int(np.searchsorted(starts, row, "right")) - 1
        at = row - int(starts[part])
        if row not in pictures:
            pictures[row] = _picture(images[part], at)
        card = _card(pictures[row], images[part].name(at), labels, row, column, chance)
        size += len(card.encode(errors="replace"))
        if size > BYTES:
            break
        cards[column].append(card)
        if progress is not None:
            progress(done + 1, len(turns))
    return cards


def _section(labels: Labels, column: int, count: int, cards: list[str]) -> str:
    left = count - len(cards)
    more = f"<p class=small>{len(cards):,} are shown, the most likely first; {left:,} are left out.</p>" if left else ""
    heading = f"<h2>{_name(labels, column)}: {count:,} suggested</h2>"
    return f"<section id=c{column}>{heading}{more}<div class=gallery>{''.join(cards)}</div></section>"


def _card(picture: str, file: str, labels: Labels, row: int, column: int, chance: float) -> str:
    name = labels.id(row)
    if not file.endswith(name):  # an id that is no file name, such as the numbers of COCO
        name = f"{name} ({Path(file).name})"
    lines = [f"<b>{chance:.3f}</b> {_text(name)}"]
    for what, known in (("written", labels.positives(row)), ("absent", labels.negatives(row))):
        if what == "written" or len(known):
            lines.append(f"{what}: {_list(labels, known.tolist())}")
    return f"<figure>{picture}<figcaption>{'<br>'.join(lines)}</figcaption></figure>"


def _picture(images: Images, row: int) -> str:
    """A small JPEG of one row, or why there is none."""
    try:
        picture = _opened(images, row)
    except DataError as error:
        return f"<p class=none>{escape(visible(str(error)))}</p>"
    picture.thumbnail((SIDE, SIDE))
    picture.info.clear()  # comments and the like are not for this page
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=80, optimize=True)
    return f'<img src="{embedded(buffer.getvalue(), "jpeg")}" alt="">'


def _opened(images: Images, row: int) -> Image.Image:
    if isinstance(images, ImageFiles | ShardImages):
        return images.picture(row, SIDE)
    pixels = images.decode(row, SIDE)
    if pixels.ndim != 3 or pixels.shape[0] != 3 or str(pixels.dtype) != "torch.uint8":
        raise DataError(f"{images.name(row)} is no picture of three colours, but {tuple(pixels.shape)} {pixels.dtype}")
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().cpu().numpy())


def _list(labels: Labels, columns: Sequence[int]) -> str:
    more = f" and {len(columns) - _NAMES:,} more" if len(columns) > _NAMES else ""
    return (", ".join(_name(labels, column) for column in columns[:_NAMES]) or "nothing") + more


def _name(labels: Labels, column: int) -> str:
    return _text(labels.classes[column])


def _text(name: str) -> str:
    """A name that may be anything, as text for the page."""
    half = _LETTERS // 2
    return escape(visible(name if len(name) <= _LETTERS else f"{name[:half]}…{name[-half:]}"))


_STYLE = """
.links{line-height:1.9}.links a{color:#0059a3}h2,figcaption,.links,.none{overflow-wrap:anywhere}
.gallery{display:grid;grid-template-columns:repeat(auto-fill,minmax(160px,1fr));gap:1rem}
figure{margin:0}figure img{display:block;width:160px;height:160px;object-fit:contain;background:#f0f2f5}
figcaption{font-size:.8rem;line-height:1.35;margin-top:.3rem}
.none{margin:0;width:160px;height:160px;overflow:auto;padding:.5rem;background:#fde5e3;color:#98180f;font-size:.75rem}
"""
