"""The measured figures of docs/papers.md, from docs/results/voc2012.json, the specs, and the tables of benches.

    python -m benchmarks.papers_page

Each table of the page that has figures stands between `<!-- measured NAME -->` and `<!-- end -->`, and is written anew.
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.voc2012 import PUBLISHED, _text
from pluralis.bench.spec import Spec
from pluralis.config import Recipe

PAGE, RESULTS, BENCH = Path("docs/papers.md"), Path("docs/results/voc2012.json"), Path("docs/results/papers")
LISTED = "runs.txt"  # below BENCH
NOT_RUN, NOT_HERE = "not run yet", "not in the package"
_BLOCK = re.compile(r"(<!-- measured ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Rows = Mapping[str, Mapping[str, Any]]
"""Of the file of results, by group and name: `fair: an`."""


@dataclass(frozen=True)
class Compared:
    """A published table and what was measured of it; `rows` says where a row stands in the file, if not by its name."""

    spec: str
    column: str
    small: str = ""  # the column at the small scale; "" = of the same name
    base: str = "an"  # row that the others are compared with
    rows: Mapping[str, str] = field(default_factory=dict)
    more: tuple[str, ...] = ()  # rows that nobody published
    without: tuple[str, ...] = ()  # rows of the spec that this column has not


@dataclass(frozen=True)
class Grid:
    """A table of several columns at the small scale, ours / published where a paper has the figure."""

    spec: str
    published: str = "{}"  # the published column of one of ours


_DECODER_ROWS = {
    **dict.fromkeys(("wan", "epr", "an-ls", "role", "em", "em-apl"), ""),  # not there with this head
    "an": "decoder: an, lr 0.0001, head ×1",
    "lac": "decoder: lac, lr 0.0001, head ×1",
    "pseudo-labels": "decoder: lac without contrast, lr 0.0001, head ×1",
}
TABLES = {
    "em-table1": Compared("em-table1", "VOC"),
    "gr-table2": Compared("gr-table2", "VOC", more=("gr, head from log-odds", "splc, hill")),
    "gr-table3": Compared("gr-table3", "VOC"),
    "lac-table2-decoder": Compared("lac-table2", "VOC decoder", rows=_DECODER_ROWS, without=("EN + CL", "EN + SCL")),
    "lac-table2-linear": Compared(
        "lac-table2", "VOC linear", rows={"role": "comparators: role, linear start"}, without=("lac",)
    ),
    "lac-table3": Compared("lac-table3", "VOC", rows=_DECODER_ROWS),
    "cls-table2": Compared("cls-table2", "VOC one label", small="one label", base="asl", more=("decoupling",)),
}
GRIDS = {
    "cls-table2-shares": Grid("cls-table2", "VOC {}"),
    "pu-mlc-table1-small": Grid("pu-mlc-table1", "VOC {}"),
    **{name: Grid(name) for name in (f"pu-mlc-table{number}" for number in (4, 6, 8, 10, 11))},
    "published-or-fair-rules": Grid("published-or-fair"),
}
SHARES, SHOWN = (10, 50, 90), ("an", "bce", "pu-mlc")


def load(file: Path = RESULTS) -> Rows:
    return {f"{row['group']}: {row['name']}": row for row in json.loads(file.read_text(encoding="utf-8"))["rows"]}


def compared(table: Compared, rows: Rows) -> str:
    """Ours beside the published ones, each with its difference to the base: at 256 px over the seeds of both."""
    spec, small = _spec(table.spec), measured_small(table.spec)
    printed = next(one for one in spec.published if (one.metric or spec.metric) == "mAP")
    base, own = printed.value(table.base, table.column), _found(table, table.base, rows)
    column = table.small or table.column
    to = f"to `{table.base}`"
    lines = [_line("row", "published", to, "256 px", to, "160 px", to), "|---|--:|--:|--:|--:|--:|--:|"]
    for row in spec.rows:
        if row.name in table.without:
            continue
        value, mine = printed.value(row.name, table.column), _found(table, row.name, rows)
        text = printed.values.get(row.name, {}).get(table.column, "") if value else ""
        gap = _signed(value[0] - base[0]) if value and base and row.name != table.base else ""
        none = NOT_HERE if row.seeds == 0 else NOT_RUN
        second = small.get((row.name, column))
        cells = [figure(mine) if mine else none, _gap(mine, own)]
        if second:
            height = second["mAP"]["mean"] - small[table.base, column]["mAP"]["mean"]
            cells += [figure(second), "" if row.name == table.base else _signed(height)]
        else:
            cells += [none, ""]
        lines.append(_line(_marked(row.name, row.method), str(text), gap, *cells))
    for name in table.more:
        mine = _found(table, name, rows)
        assert mine is not None
        lines.append(_line(_marked(name, mine["method"]), "", "", figure(mine), _gap(mine, own), "", ""))
    return "\n".join(lines)


def grid(table: Grid) -> str:
    """Each row that was run at the small scale: ours / published."""
    spec, small = _spec(table.spec), measured_small(table.spec)
    columns = list(dict.fromkeys(column for _, column in small))
    printed = [one for one in spec.published if (one.metric or spec.metric) == spec.metric]
    lines = [_line("row", *columns), "|---|" + "--:|" * len(columns)]
    for row in spec.rows:
        cells = []
        for column in columns:
            mine, named = small.get((row.name, column)), table.published.format(column)
            theirs = [f"{value[0]:.1f}" for one in printed if (value := one.value(row.name, named))]
            cells.append(" / ".join([*([figure(mine)] if mine else []), *theirs[:1]]))
        if any((row.name, column) in small for column in columns):
            lines.append(_line(_marked(row.name, row.method), *cells))
    return "\n".join(lines)


def measured_small(spec: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What a bench has of a spec's mAP, by row and column, in the form of `Rows`."""
    title = f"{_spec(spec).title}: mAP"
    found: dict[tuple[str, str], dict[str, Any]] = {}
    with (BENCH / spec / "table.csv").open(encoding="utf-8", newline="") as file:
        for cell in csv.DictReader(file):
            if cell["table"] != title or " published [" in cell["column"]:
                continue
            row = found.setdefault((cell["row"], cell["column"]), {"mAP": {"mean": None, "sd": None}, "seeds": 0})
            if cell["figure"] == "runs":
                row["seeds"] = int(cell["value"])
            else:
                row["mAP"][cell["figure"]] = float(cell["value"])
    return found


def shares(rows: Rows) -> str:
    """PU-MLC, Table 1: shares of known labels."""
    spec = _spec("pu-mlc-table1")
    printed = next(one for one in spec.published if "pu-mlc" in one.values)
    lines = [_line("row", *(f"{share} %" for share in SHARES)), "|---|--:|--:|--:|"]
    for method in SHOWN:
        lines.append(_line(f"`{method}`", *(figure(rows[f"ratios: {method}, {share} % known"]) for share in SHARES)))
    published = [printed.value("pu-mlc", f"VOC {share} %") for share in SHARES]
    return "\n".join([*lines, _line("`pu-mlc`, published", *(f"{value[0]:.1f}" for value in published if value))])


def settings(rows: Rows) -> str:
    """The five systems: as printed, chosen and fair."""
    lines = [_line("system", "as printed", "chosen", "fair"), "|---|--:|--:|--:|"]
    for name, (file, *_) in PUBLISHED.items():
        train = Recipe.load(Path(file)).train
        printed = rows.get(f"published: {name}, lr {train.lr:g}, head ×{train.head_lr:g}")
        mine = [row for key, row in rows.items() if key.startswith(f"published: {name}, ")]
        chosen = max(mine, key=lambda row: row["seeds"])  # the others have one seed
        cells = [figure(row) if row else NOT_RUN for row in (printed, chosen, rows[f"fair: {name}"])]
        lines.append(_line(f"`{name}`", *cells))
    return "\n".join(lines)


def small_scale() -> str:
    """The tables that a bench left: how many of their runs are there, how long these trained, and on what."""
    lines = [_line("table", "runs", "seconds of training", "device", "drawn"), "|---|--:|--:|---|---|"]
    runs = {run["key"]: run for run in _stored()}
    for file in sorted(BENCH.glob("*/table.md"), key=lambda file: _numbers(file.parent.name)):
        mine = [runs[key] for key in _keys(file.parent.name) if key in runs]
        some = re.search(r"Not complete: (\d+ of \d+) runs", file.read_text(encoding="utf-8"))
        figures = sorted((file.parent / "figures").glob("*.svg"))
        lines.append(
            _line(
                _link(file.parent.name, file),
                some[1] if some else str(len(mine)),
                f"{sum(run['seconds'] for run in mine):,.0f}",
                ", ".join(sorted({run["device"] for run in mine})),
                ", ".join(_link(drawing.stem.split("-", 1)[1].replace("-", " "), drawing) for drawing in figures),
            )
        )
    return "\n".join(lines)


def _keys(spec: str) -> list[str]:
    """Of the runs that stand in a spec's table, from what `pluralis bench … --list` printed of all of them."""
    listed = (BENCH / LISTED).read_text(encoding="utf-8")
    found = re.findall(r"^(\w{16})  \w+ +([\w-]+) · .*?(?:\(also (.*)\))?$", listed, re.MULTILINE)
    return [key for key, first, others in found if spec in (first, *others.split(", "))]


def _stored() -> list[dict[str, Any]]:
    """The results of a bench."""
    return [json.loads(file.read_text(encoding="utf-8"))["body"] for file in sorted(BENCH.glob("results/*.json"))]


def small_seconds() -> str:
    """How long the runs of a bench trained, by method."""
    seconds, devices = defaultdict(list), set()
    for run in _stored():
        seconds[run["recipe"]["method"]["name"]].append(run["seconds"])
        devices.add(run["device"])
    each = sorted((median(values), name) for name, values in seconds.items())
    count, hours = sum(map(len, seconds.values())), sum(map(sum, seconds.values())) / 3600
    return (
        f"{count} runs on {' and '.join(sorted(devices))}, {hours:.1f} h of training in all, side by side. Median"
        f" seconds of a run: {', '.join(f'`{name}` {value:.0f}' for value, name in each)}."
    )


def _spec(name: str) -> Spec:
    return Spec.load(Path(f"papers/{name}.toml"), "small")


def _numbers(name: str) -> list[str | int]:
    """For an order in which table10 comes after table9.

    >>> _numbers("pu-mlc-table10")
    ['pu-mlc-table', 10, '']
    """
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def block(name: str, rows: Rows) -> str:
    """A table of the page by its name."""
    if name in TABLES:
        return compared(TABLES[name], rows)
    if name in GRIDS:
        return grid(GRIDS[name])
    if name.startswith("small-"):
        return {"small-scale": small_scale, "small-seconds": small_seconds}[name]()
    return {"pu-mlc-table1": shares, "published-or-fair": settings}[name](rows)


def written(page: str, rows: Rows) -> str:
    """The page with all its tables made anew."""
    return _BLOCK.sub(lambda found: f"{found[1]}{block(found[2], rows)}\n{found[3]}", page)


def figure(row: Mapping[str, Any]) -> str:
    """
    >>> figure({"mAP": {"mean": 82.5, "sd": None}, "seeds": 1})
    '82.50 (1 seed)'
    """
    few = "" if row["seeds"] >= 3 else f" ({row['seeds']} seed{'s' if row['seeds'] > 1 else ''})"
    return _text(row["mAP"], 2) + few


def _found(table: Compared, name: str, rows: Rows) -> Mapping[str, Any] | None:
    places: tuple[str, ...] = (table.rows[name],) if name in table.rows else (f"fair: {name}", f"comparators: {name}")
    return next((rows[place] for place in places if place in rows), None)


def _gap(mine: Mapping[str, Any] | None, base: Mapping[str, Any] | None) -> str:
    """The mean difference over the seeds that both have."""
    if mine is None or base is None or mine is base:
        return ""
    theirs = {run["seed"]: run["mAP"] for run in base["runs"]}
    gains = [run["mAP"] - theirs[run["seed"]] for run in mine["runs"] if run["seed"] in theirs]
    return _signed(fmean(gains)) if gains else ""


def _signed(value: float) -> str:
    """
    >>> _signed(-0.04), _signed(-1.26), _signed(0.5)
    ('0.0', '−1.3', '+0.5')
    """
    text = f"{value:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def _marked(name: str, method: str) -> str:
    """The name of a method as code, wherever a row begins with it.

    >>> _marked("role, linear start", "role"), _marked("all labels", "bce")
    ('`role`, linear start', 'all labels')
    """
    return f"`{method}`{name.removeprefix(method)}" if method and name.startswith(method) else name


def _link(text: str, file: Path) -> str:
    return f"[{text}]({file.relative_to(PAGE.parent).as_posix()})"


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), load()), encoding="utf-8")
