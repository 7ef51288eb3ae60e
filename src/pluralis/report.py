"""The report of a demo run: one HTML file that holds everything it shows and asks nothing of the network.

All text passes through `html.escape`, pictures are embedded, and a content policy forbids everything else.
"""

from __future__ import annotations

import io
import math
import statistics
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from pluralis.checkpoint import write_file
from pluralis.data.whole_file import make_folder
from pluralis.html_page import document, embedded
from pluralis.results import MEASURES, DemoResults, cell, gain, headline, rows

if TYPE_CHECKING:  # rich, torch and matplotlib are slow to import and not needed to describe results
    from torch import Tensor


def write_report(path: Path, results: DemoResults) -> Path:
    """Write the report as one self-contained HTML file and return its path."""
    body = "".join(
        [
            f"<header><h1>{escape(results.title)}</h1><p class=lead>{escape(headline(results))}</p></header>",
            f"<section><h2>Learning curves</h2>{_curves(results)}</section>",
            f"<section><h2>Final results</h2>{_table(results)}</section>",
            f"<section><h2>Test images</h2>{_LEGEND}{_gallery(results)}</section>" if results.gallery else "",
            f"<section><h2>How this was made</h2>{_origin(results)}</section>",
        ]
    )
    make_folder(path.parent)
    write_file(path, document(results.title, body, _STYLE).encode(errors="replace"))
    return path


def _table(results: DemoResults) -> str:
    lines = []
    for row in rows(results):
        note = " <span class=tag>upper bound</span>" if row.upper else ""
        cells = "".join(
            f"<td{' class=best' if k in row.best else ''}>{cell(row, k)}{' ★' if k in row.best else ''}</td>"
            for k in MEASURES
        )
        lines.append(
            f"<tr{' class=upper' if row.upper else ''}><th scope=row>{escape(row.method.title)}{note}</th>{cells}"
            f"<td>{gain(row)}</td><td>{row.seconds:.1f}</td><td>{len(row.method.runs)}</td></tr>"
        )
    heads = "".join(f"<th scope=col>{k}</th>" for k in (*MEASURES, "Δ mAP", "seconds a run", "seeds"))
    return (
        f"<div class=wide><table><thead><tr><th scope=col>method</th>{heads}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
        "<p class=small>Per cent, mean ± sample standard deviation over seeds. Δ mAP is against the first method. "
        "★ marks the best of a column, the upper bound left aside.<br>"
        f"Weights: {escape(results.selection_rule)}. Predicted: {escape(results.threshold_rule)}.</p>"
    )


def _curves(results: DemoResults) -> str:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 4.2), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    ends: list[tuple[float, float, str, str]] = []
    colours = iter(_COLOURS * (1 + len(results.methods) // len(_COLOURS)))
    for method in results.methods:
        at: dict[float, list[float]] = {}
        for point in (p for run in method.runs for p in run.epochs if math.isfinite(p["mAP"])):
            at.setdefault(point["epoch"], []).append(point["mAP"])
        if not at:
            continue
        x, upper = sorted(at), method.name == results.upper
        y = [statistics.fmean(at[e]) for e in x]
        colour = "#555555" if upper else next(colours)
        axes.fill_between(x, [min(at[e]) for e in x], [max(at[e]) for e in x], color=colour, alpha=0.15, lw=0)
        axes.plot(x, y, color=colour, lw=2, ls="--" if upper else "-", marker=None if upper else "o", ms=4)
        ends.append((y[-1], x[-1], method.title, colour))
    low, high = axes.get_ylim()
    place = -math.inf
    for y_end, x_end, title, colour in sorted(ends):
        place = max(y_end, place + (high - low) * 0.06)  # names of curves that end together are set apart
        short = title if len(title) <= 30 else title[:29] + "…"
        name = axes.annotate(
            short, (x_end, place), (8, 0), textcoords="offset points", color=colour, va="center", annotation_clip=False
        )
        name.set_parse_math(False)  # a dollar in a title is a dollar
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("mAP, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e5e5")
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    said = "; ".join(f"{title} ends at {y:.1f}" for y, _, title, _ in ends)
    return (
        f'<img class=chart src="{embedded(buffer.getvalue())}" alt="mAP by epoch. {escape(said)}.">'
        "<p class=small>Line: mean over seeds. Band: lowest to highest seed. Dashed: upper bound.</p>"
    )


def _gallery(results: DemoResults) -> str:
    cards = []
    for item in results.gallery:
        given = f"<b>{escape(item.given)}</b>" if item.given is not None else "none"
        lines = "".join(
            f"<dt>{escape(m.title)}</dt><dd>{_verdicts(item.predictions[m.name], item.truth)}</dd>"
            for m in results.methods
            if m.name in item.predictions
        )
        alt = escape("Test image with " + (", ".join(item.truth) or "no labels"))
        cards.append(
            f'<article><img src="{_picture(item.image)}" alt="{alt}"><dl><dt>annotator’s one label</dt><dd>{given}</dd>'
            f"<dt>true labels</dt><dd>{escape(', '.join(item.truth)) or 'none'}</dd>{lines}</dl></article>"
        )
    return f"<div class=gallery>{''.join(cards)}</div>"


def _verdicts(predicted: list[str], truth: list[str]) -> str:
    right = [f"<span class=right>✓ {escape(c)}</span>" for c in truth if c in predicted]
    missed = [f"<span class=missed>? {escape(c)}</span>" for c in truth if c not in predicted]
    wrong = [f"<span class=wrong>✗ <s>{escape(c)}</s></span>" for c in predicted if c not in truth]
    return " ".join(right + missed + wrong) or "nothing"


def _picture(image: Tensor) -> str:
    from PIL import Image

    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy())
    times = max(1, round(192 / max(picture.size)))
    buffer = io.BytesIO()
    enlarged = picture.resize((picture.width * times, picture.height * times), Image.Resampling.NEAREST)
    enlarged.save(buffer, format="PNG", optimize=True)
    return embedded(buffer.getvalue())


def _origin(results: DemoResults) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    notes = "".join(f"<li>{escape(note)}</li>" for note in results.notes)
    return (
        f"<p>Run again with</p><pre><code>{escape(results.command)}</code></pre>"
        f"<p class=small>Device: {escape(results.device)}. Versions: {escape(versions)}.</p>"
        + (f"<ul>{notes}</ul>" if notes else "")
    )


_COLOURS = ("#0072b2", "#d55e00", "#008a66", "#a4508b", "#8a6d00", "#2a9bd6", "#555555")  # apart for the colour-blind
_LEGEND = (
    "<p class=legend><span class=right>✓ right</span> present and predicted "
    "<span class=missed>? missed</span> present, not predicted "
    "<span class=wrong>✗ <s>wrong</s></span> predicted, not present</p>"
)
_STYLE = """
.chart{display:block;width:100%;height:auto}
.best{font-weight:700;background:#eaf6ef}.upper{color:#566;font-style:italic}
.tag{font-size:.75rem;font-style:normal;border:1px solid #b8c0ca;border-radius:4px;padding:0 .35rem}
.right,.wrong,.missed{display:inline-block;border-radius:5px;padding:0 .4rem;margin:.1rem 0;font-size:.9rem}
.right{background:#dff3e6;color:#12592f}.wrong{background:#fde5e3;color:#98180f}
.missed{border:1px dashed #8a94a0;color:#566}.legend{font-size:.9rem;line-height:2}
.gallery{display:grid;grid-template-columns:repeat(auto-fill,minmax(290px,1fr));gap:1rem}
article{border:1px solid #e1e5ea;border-radius:8px;padding:.8rem}
article img{display:block;width:144px;height:auto;image-rendering:pixelated;margin:0 auto .6rem;border-radius:4px}
dl{display:grid;grid-template-columns:minmax(5rem,2fr) 3fr;gap:.15rem .6rem;margin:0;font-size:.85rem}
dt{color:#566}dd{margin:0}
"""
