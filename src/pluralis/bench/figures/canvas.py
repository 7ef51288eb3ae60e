"""Paper to draw on: figures without global state, colours that everybody can tell apart, and SVG with real text."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # slow to import
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#008a66", "#a4508b", "#8a6d00", "#2a9bd6", "#555555")
GREY = "#8a94a0"
_DASHES = ("-", "--", "-.", ":")
_MARKERS = "osD^vPX"


def new_figure(panels: int = 1, columns: int = 3, size: tuple[float, float] = (7.0, 3.8)) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels; `size` in inches is that of the whole for one panel, and of each for several."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(panels, columns)
    down = math.ceil(panels / across)
    figure = Figure(figsize=(size[0] * across, size[1] * down), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(down, across, place + 1) for place in range(panels)]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(axis="y", color="#e5e5e5")
        one.set_axisbelow(True)
    return figure, axes


def looks(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour, dash and marker of each line; lines that share a colour differ in the dash."""
    return {
        name: {
            "color": COLOURS[i % len(COLOURS)],
            "ls": _DASHES[i // len(COLOURS) % len(_DASHES)],
            "marker": _MARKERS[i % len(_MARKERS)],
            "ms": 4,
        }
        for i, name in enumerate(names)
    }


def legend(figure: Figure, axes: Axes, above: bool = False) -> None:
    """Beside the panels, or above them where they are wide: it never hides data."""
    handles, labels = axes.get_legend_handles_labels()
    place: dict[str, Any] = {"loc": "outside upper center", "ncols": 3} if above else {"loc": "outside right upper"}
    figure.legend(handles, [shorten(label, 40) for label in labels], frameon=False, fontsize=9, **place)


def shorten(text: str, length: int = 34) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def whole_numbers(axes: Axes) -> None:
    """Ticks of the x axis at whole numbers alone."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def to_svg(figure: Figure) -> str:
    """The figure as an `<svg>` element: its text is text, and what is named in it has the same name every time.

    >>> figure, (axes,) = new_figure()
    >>> _ = axes.set_xlabel("5 $ < 6 $")
    >>> ">5 $ &lt; 6 $<" in to_svg(figure)
    True
    """
    import matplotlib
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a dollar in a name is a dollar
    buffer = io.StringIO()
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pluralis"}):
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the reader's own font will have it
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


def with_prefix(svg: str, prefix: str) -> str:
    """The same drawing with a prefix to all names in it, so that several fit into one page.

    >>> with_prefix('<g id="a"><use xlink:href="#a"/><text> id="b"</text></g>', "f1-")
    '<g id="f1-a"><use xlink:href="#f1-a"/><text> id="b"</text></g>'
    """
    names = re.compile(r'(\sid="|href="#|="url\(#)')
    return re.sub(r"<[^<>]*>", lambda tag: names.sub(lambda found: found[1] + prefix, tag[0]), svg)
