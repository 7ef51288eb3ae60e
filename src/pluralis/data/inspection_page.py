"""The page of `pluralis data inspect`: one HTML file that holds everything it shows and asks nothing of the network.

All text passes through `html.escape`, plots are embedded, and a content policy forbids everything else.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pluralis.checkpoint import write_file
from pluralis.data.inspection import Inspection, together
from pluralis.data.inspection_tables import hint_line
from pluralis.data.whole_file import make_folder
from pluralis.html_page import document, embedded
from pluralis.labels import Labels

if TYPE_CHECKING:  # slow to import
    from matplotlib.axes import Axes

_LINES = 1000  # of a table: a page of twenty thousand classes is read by nobody
_BARS, _CELLS = 40, 20
_COLOUR, _OTHER = "#0072b2", "#d55e00"


def write_page(path: Path, title: str, names: Iterable[str], labels: Labels, found: Inspection) -> None:
    """Write the page; `names` are the images of the rows, for people to find them."""
    sections = [_overview(labels, found), _classes(found), _rows(found), _pairs(labels, found)]
    if found.files is not None:
        sections.append(_files(list(names), found))
    body = f"<h1>{escape(title)}</h1>{''.join(f'<section>{section}</section>' for section in sections)}"
    page = document(title, body, _STYLE)
    make_folder(path.parent)
    write_file(path, page.encode(errors="replace"))


def _overview(labels: Labels, found: Inspection) -> str:
    known = found.summary
    lines = [
        ("images", f"{len(labels):,}"),
        ("classes", f"{len(labels.classes):,}"),
        ("present", f"{known.positives.sum():,}"),
        ("absent", f"{known.negatives.sum():,}"),
        ("unknown", f"{known.unknown.sum():,}"),
        ("known", f"{known.known_ratio:.2%}"),
        ("present an image", f"{known.cardinality:.2f}"),
        ("images without any label", f"{len(known.empty_rows):,}"),
        ("different rows of labels", f"{found.patterns:,}"),
        ("images whose labels another image has too", f"{found.repeated:,}"),
    ]
    hints = "" if found.hints is None else f"<p class=small>{escape(hint_line(found.hints))}</p>"
    return "<h2>Labels</h2>" + _table(("", ""), lines) + hints


def _classes(found: Inspection) -> str:
    known = found.summary
    order = np.argsort(-known.positives, kind="stable")
    shown = order[:_BARS][::-1]

    def draw(axes: Axes) -> None:
        places = np.arange(len(shown))
        axes.barh(places, known.positives[shown], color=_COLOUR, label="present")
        axes.barh(places, known.negatives[shown], left=known.positives[shown], color=_OTHER, label="absent")
        _names(axes, "y", [known.classes[c] for c in shown])
        axes.set_xlabel("images")
        axes.legend(frameon=False)

    lines = [
        (known.classes[c], f"{known.positives[c]:,}", f"{known.negatives[c]:,}", f"{known.unknown[c]:,}")
        for c in order[:_LINES]
    ]
    chart = _chart(draw, "Present and absent labels of each class", (9, 1 + 0.24 * len(shown)))
    more = f" The {_BARS} most frequent of {len(order):,} classes are drawn." if len(order) > _BARS else ""
    text = f"<p class=small>What is not drawn is unknown.{more}</p>"
    return f"<h2>Classes</h2>{chart}{text}{_table(('class', 'present', 'absent', 'unknown'), lines, len(order))}"


def _rows(found: Inspection) -> str:
    counts = np.bincount(found.summary.row_positives)
    chart = _chart(lambda axes: _bars(axes, counts, "present labels of an image"), "Images by number of present labels")
    return f"<h2>Images</h2>{chart}"


def _pairs(labels: Labels, found: Inspection) -> str:
    if not found.pairs:
        return "<h2>Classes that go together</h2><p>No image has two present labels.</p>"
    frequent = np.argsort(-found.summary.positives, kind="stable")[:_CELLS]
    both = together(labels, frequent).toarray().astype(float)
    share = both / np.maximum(np.diag(both), 1)[:, None]
    np.fill_diagonal(share, np.nan)

    def draw(axes: Axes) -> None:
        axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
        for axis in "xy":
            _names(axes, axis, [labels.classes[c] for c in frequent])
        axes.tick_params("x", rotation=90)
        axes.set_ylabel("of the images with this class")
        axes.set_xlabel("share that has this one too, white 0 to dark 1")

    name = labels.classes
    lines = [(name[p.a], name[p.b], f"{p.together:,}", f"{p.lift:.2f}") for p in found.pairs]
    table = _table(("class", "and", "images", "times chance"), lines)
    side = 3 + 0.28 * len(frequent)
    chart = _chart(draw, "How often the most frequent classes go together", (side, side))
    note = "<p class=small>Counted among labels that are written down; missing labels hide pairs.</p>"
    return f"<h2>Classes that go together</h2>{table}{note}{chart}"


def _files(names: list[str], found: Inspection) -> str:
    files = found.files
    assert files is not None
    good = files.sides[files.sides > 0]
    parts = [f"<h2>Files</h2><p>{files.sizes.sum() / 1e6:,.1f} MB in {len(names):,} files.</p>"]
    if len(good):

        def draw(axes: Axes) -> None:
            axes.hist(good, bins=min(40, len(good)), color=_COLOUR)
            axes.set_xlabel("shorter side, pixels")
            axes.set_ylabel("images")

        parts.append(_chart(draw, "Images by shorter side"))
    parts.append(f"<h3>Headers that cannot be read: {len(files.unreadable):,}</h3>")
    bad = [(names[row], reason) for row, reason in files.unreadable]
    parts.append(_table(("file", "reason"), bad[:_LINES], len(bad)) if bad else "")
    parts.append(
        f"<h3>Files with the same bytes: {len(files.copies):,} groups, {files.disagreeing:,} with different labels</h3>"
    )
    same = [(", ".join(names[row] for row in rows[:10]), f"{len(rows):,}") for rows in files.copies[:_LINES]]
    parts.append(_table(("files", "number"), same, len(files.copies)) if same else "")
    return "".join(parts)


def _table(heads: Iterable[str], lines: Iterable[Iterable[str]], total: int = 0) -> str:
    body = [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines]
    head = "".join(f"<th scope=col>{escape(cell)}</th>" for cell in heads)
    more = f"<p class=small>The first {len(body):,} of {total:,}.</p>" if total > len(body) else ""
    return f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>{more}"


def _bars(axes: Axes, counts: Any, what: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.bar(np.arange(len(counts)), counts, color=_COLOUR)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(what)
    axes.set_ylabel("images")


def _names(axes: Axes, axis: str, names: list[str]) -> None:
    short = [name if len(name) <= 30 else name[:29] + "…" for name in names]
    (axes.set_yticks if axis == "y" else axes.set_xticks)(range(len(short)), short)
    for tick in axes.get_yticklabels() if axis == "y" else axes.get_xticklabels():
        tick.set_parse_math(False)  # a dollar in a name is a dollar


def _chart(draw: Any, says: str, size: tuple[float, float] = (9, 3.2)) -> str:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=110, layout="constrained")
    axes = figure.add_subplot()
    draw(axes)
    axes.spines[["top", "right"]].set_visible(False)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name may hold characters that the font lacks: they show as boxes
        FigureCanvasAgg(figure).print_png(buffer)
    return f'<img class=chart src="{embedded(buffer.getvalue())}" alt="{escape(says)}">'


_STYLE = """
h3{font-size:1rem}.chart{display:block;max-width:100%;height:auto}
.wide{overflow:auto;max-height:32rem}table{width:auto}
th,td{padding:.35rem .7rem;white-space:normal;overflow-wrap:anywhere}
th{font-size:.85rem;color:#566}th:first-child,td:first-child{text-align:left}
"""
