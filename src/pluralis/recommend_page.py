"""A recommendation for people and for programs: a page, lines for the terminal, and JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from pluralis.bench.render import html
from pluralis.bench.table_model import BEST, Cell, Head, Line, Table
from pluralis.checkpoint import write_file
from pluralis.html_page import document
from pluralis.recommend import Recommendation
from pluralis.recommend_evidence import Interval
from pluralis.recommend_words import Compared, limits, reasons, verdict, with_interval

_NOTES = [
    "Higher is better. In brackets: 95 % intervals over held-out images (bootstrap), each method alone. What decides is"
    " the difference to the default, image by image, with an interval that holds for all comparisons together.",
    "Settings of a method are those with the best likelihood among the ones that were tried.",
]


def write(found: Recommendation) -> tuple[Path, Path]:
    """Write index.html and recommend.json beside the recipe; returns where they are."""
    folder = found.file.parent
    page, data = folder / "index.html", folder / "recommend.json"
    write_file(page, _page(found).encode(errors="replace"))
    write_file(data, (json.dumps(_facts(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return page, data


def table(found: Recommendation) -> Table:
    """A line for each method that was measured."""
    titles = ("log likelihood of a row", found.facts.precision, "train.lr", "seconds")
    lines = [_line(one, one is found.chosen) for one in found.facts.compared if one.measured is not None]
    return Table("Evidence", [Head(title, ()) for title in titles], lines, _NOTES)


def lines(found: Recommendation) -> list[str]:
    """The table for the terminal; what is recommended has a star."""
    shown = table(found)
    rows = [["", "", *(head.title for head in shown.header)]]
    rows += [
        ["*" if line.cells[0].mark else "", line.name, *(cell.text for cell in line.cells)] for line in shown.lines
    ]
    wide = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, wide, strict=True)).rstrip() for row in rows]


def _line(one: Compared, chosen: bool) -> Line:
    assert one.measured is not None
    likelihood, precision = with_interval(one.measured)
    rest = f"{one.candidate.final.train.lr:g}", f"{one.candidate.seconds:.0f}"
    return Line(one.title, [Cell(text, BEST if chosen else "") for text in (likelihood, precision, *rest)])


def _page(found: Recommendation) -> str:
    facts = found.facts

    def listed(lines: list[str]) -> str:
        return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"

    sections = [
        f"<h2>What to run</h2><pre>{escape(found.command)}</pre>",
        f"<h2>Why</h2>{listed(reasons(facts, found.chosen))}",
        f"<div class=wide>{html(table(found))}</div>",
        *([f"<h2>Gain over the default</h2><div class=wide>{_drawing(found)}</div>"] if facts.others else []),
        f"<h2>What this cannot tell</h2>{listed(limits(facts))}",
    ]
    lead = f"<p class=lead>{escape(verdict(facts, found.chosen))}</p>"
    head = f"<header><h1>Which method suits these labels</h1>{lead}</header>"
    body = head + "".join(f"<section>{section}</section>" for section in sections)
    return document("Which method suits these labels", body)


def _drawing(found: Recommendation) -> str:
    """Differences to the default with their intervals."""
    from pluralis.bench.figures.canvas import COLOURS, GREY, new_figure, to_svg

    others = found.facts.others
    figure, panels = new_figure(2, 2, (4.2, 0.5 * len(others) + 1.2))
    for axes, what in zip(panels, ("likelihood", "precision"), strict=True):
        gains: list[Interval] = [getattr(one.over_default, what) for one in others]
        ends = [[g.value - g.low for g in gains], [g.high - g.value for g in gains]]
        axes.errorbar([g.value for g in gains], range(len(gains)), xerr=ends, fmt="o", color=COLOURS[0], capsize=3)
        axes.axvline(0, color=GREY, lw=1)
        axes.set_yticks(range(len(gains)), [one.title for one in others])
        axes.set_ylim(len(gains) - 0.5, -0.5)
        axes.set_xlabel("log likelihood of a row" if what == "likelihood" else found.facts.precision)
    return to_svg(figure)


def _facts(found: Recommendation) -> dict[str, Any]:
    facts = found.facts
    return {
        "method": found.method,
        "verdict": verdict(facts, found.chosen),
        "command": found.command,
        "reasons": reasons(facts, found.chosen),
        "limits": limits(facts),
        "held-out rows": facts.rows,
        "labels verified to be absent": facts.verified,
        "frozen backbone": facts.frozen,
        "compared": [_figures(one) for one in facts.compared],
        "tried": [
            {"name": c.name, "score": c.score, "seconds": round(c.seconds, 1), "note": c.note} for c in found.candidates
        ],
    }


def _figures(one: Compared) -> dict[str, Any]:
    figures: dict[str, Any] = {"method": one.candidate.final.method.name, "candidate": one.candidate.name}
    if one.measured is not None:
        figures |= {"likelihood": one.measured.likelihood, "mAP": one.measured.precision}
    if one.over_default is not None:
        figures["over default"] = asdict(one.over_default)
    return figures
