"""The page of a bench: its tables, all its figures and where they come from, in one HTML file."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pluralis.bench.figures import KINDS, draw, options_of
from pluralis.bench.figures.canvas import to_svg, with_prefix
from pluralis.bench.render import html, html_note
from pluralis.bench.table_notes import settings_note
from pluralis.checkpoint import write_file
from pluralis.errors import PluralisError
from pluralis.html_page import document

if TYPE_CHECKING:
    from pluralis.bench.spec import Spec
    from pluralis.bench.store import Result
    from pluralis.bench.tables import Table


@dataclass(frozen=True)
class Origin:
    """What the command line said."""

    settings: Sequence[str] = ()  # over those of the spec
    command: str = ""


def write(
    out: Path,
    spec: Spec,
    tables: Sequence[Table],
    results: Sequence[Result],
    say: Callable[[str], None] = lambda line: None,
    origin: Origin | None = None,
) -> Path:
    """Write `index.html`, and each figure as a file under `figures/`; returns the path of the page.

    A figure that cannot be drawn yet, as its runs are not finished or were not kept, is a reason in the page, and a
    line for `say`. Without [[figures]] in the spec there are learning curves, and gains over the baseline.
    """
    origin = origin or Origin()
    (out / "figures").mkdir(parents=True, exist_ok=True)
    sections = [f"<div class=wide>{html(table)}</div>" for table in tables]
    drawn: set[Path] = set()
    for number, figure in enumerate(asked(spec), 1):
        svg, left, reason = _drawn(spec, figure, results)
        if reason:
            say(f"figure {number} ({figure['kind']}) is not drawn: {reason}")
        else:
            drawn.add(out / "figures" / f"{number:02d}-{figure['kind']}.svg")
            write_file(out / "figures" / f"{number:02d}-{figure['kind']}.svg", svg.encode(errors="replace"))
        sections.append(_section(number, figure, svg, left, reason))
    for old in set((out / "figures").glob("??-*.svg")) - drawn:  # of a spec that asked for others
        old.unlink()
    sections.append(_origin(spec, results, origin))
    about = f"<p class=lead>{html_note(spec.about)}</p>" if spec.about else ""
    about += f"<p>{escape(settings_note(origin.settings))}</p>" if origin.settings else ""
    body = f"<header><h1>{escape(spec.title)}</h1>{about}</header>"
    body += "".join(f"<section>{section}</section>" for section in sections)
    path = out / "index.html"
    write_file(path, document(spec.title, body, _STYLE).encode(errors="replace"))
    return path


def asked(spec: Spec) -> list[dict[str, Any]]:
    """The figures of the spec, or those that every bench can have."""
    if spec.figures:
        return spec.figures
    gain = [{"kind": "class-gain"}] if spec.baseline else []
    return [{"kind": "learning-curves"}, *gain]


def _drawn(spec: Spec, figure: Mapping[str, Any], results: Sequence[Result]) -> tuple[str, str, str]:
    """The figure as SVG and what is left out of it, or the reason why there is none."""
    try:
        drawn = draw(figure["kind"], results, options_of(figure, spec.baseline))
    except PluralisError as error:
        return "", "", str(error)
    return to_svg(drawn), str(drawn.get_label()), ""


def _section(number: int, figure: Mapping[str, Any], svg: str, left: str, reason: str) -> str:
    kind = str(figure["kind"])
    title = str(figure.get("title") or kind.replace("-", " ").capitalize().replace("Kl ", "KL "))
    about = inspect.getdoc(KINDS[kind]).split("\n\n")[0] if kind in KINDS else ""  # type: ignore[union-attr]
    drawing = f"<p class=reason>Not drawn: {escape(reason)}</p>" if reason else with_prefix(svg, f"figure-{number}-")
    caption = escape(f"{' '.join(about.split())} {left}".replace("`", "").strip())
    return f"<h2>{escape(title)}</h2><div class=figure>{drawing}</div><p class=small>{caption}</p>"


def _origin(spec: Spec, results: Sequence[Result], origin: Origin) -> str:
    """From what the page was made."""
    lines = [("spec", escape(spec.file.name)), ("scale", escape(spec.scale_name))]
    if origin.settings:
        lines.append(("set over the spec", escape(", ".join(origin.settings))))
    if origin.command:
        lines.append(("command", f"<code>{escape(origin.command)}</code>"))
    lines += _runs(results) if results else [("runs", "No run is finished yet.")]
    body = "".join(f"<tr><th scope=row>{name}</th><td>{value}</td></tr>" for name, value in lines)
    return f"<h2>Where this comes from</h2><div class=wide><table class=origin><tbody>{body}</tbody></table></div>"


def _runs(results: Sequence[Result]) -> list[tuple[str, str]]:

    def many(values: Sequence[str]) -> str:
        return escape(", ".join(f"{value} ({count})" for value, count in Counter(values).most_common()))

    versions = [", ".join(f"{name} {version}" for name, version in run.versions.items()) for run in results]
    return [
        ("runs", f"{len(results):,}"),
        ("seconds of training", f"{sum(run.seconds for run in results):,.0f}"),
        ("devices", many([run.device for run in results])),
        ("versions", many(versions)),
        ("code", many([run.code_hash for run in results])),
        ("dates", escape(" to ".join(sorted({min(run.date for run in results), max(run.date for run in results)})))),
    ]


_STYLE = """
.figure{overflow-x:auto}.figure svg{display:block;max-width:100%;height:auto}
.reason{color:#98180f;background:#fde5e3;padding:.5rem .7rem;border-radius:6px;overflow-wrap:anywhere}
.origin td{white-space:normal;overflow-wrap:anywhere}ul{font-size:.85rem;color:#566;padding-left:1.2rem}
"""
