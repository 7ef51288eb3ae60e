"""The tables of a bench: our means and spreads, published numbers in own columns, differences to a baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from pluralis.bench.plan import Run
from pluralis.bench.spec import Column, Published, Row, Spec, shown_name
from pluralis.bench.statistics import Difference, Summary, holm, paired_difference, summarise
from pluralis.bench.store import Result
from pluralis.bench.table_model import DIGITS, Cell, Head, Line, Table, filled, ranked


def make_tables(spec: Spec, runs: list[Run], results: list[Result], without_data: list[str]) -> list[Table]:
    """A table for each metric, one of differences to the baseline beside it, and what else the spec asks for.

    `runs` are all that the table is to hold, and `results` those that are there.
    """
    table = _Tables(replace(spec, columns=spec.shown_columns()), runs, results, without_data)
    found: list[Table] = []
    for metric in (spec.metric, *spec.also):
        found.append(table.figures(metric))
        if spec.baseline:
            found.append(table.differences(metric))
        if len(spec.selections) > 1:
            found.append(table.between_rules(metric, [column.name for column in spec.columns]))
    if spec.thresholds:
        found += [table.thresholds(column) for column in spec.shown_columns()]
    return [*found, table.seconds()] if spec.seconds else found


class _Tables:
    def __init__(self, spec: Spec, runs: list[Run], results: list[Result], without_data: list[str]) -> None:
        self.spec, self.runs, self.results, self.without_data = spec, runs, results, without_data

    def figures(self, metric: str) -> Table:
        """Ours, and what was published of this metric."""
        ours = [Head(self._title(column, metric), ("mean", "sd", "runs")) for column in self.spec.columns]
        lines = []
        for row, name in self._lines():
            cells = [self._cell(row, name, column, metric) for column in self.spec.columns]
            cells += [self._published(table, row, column) for table, column in self._printed(metric)]
            lines.append(Line(name, cells, row.group, row.bound))
        theirs = [self._printed_head(table, column, metric) for table, column in self._printed(metric)]
        shown = [table for table, _ in self._printed(metric)]
        sources = [f"[{n}] {table.source}" for n, table in enumerate(self.spec.published, 1) if table in shown]
        notes = [*(self._notes() if metric == self.spec.metric else []), *sources]
        return Table(f"{self.spec.title}: {metric}", [*ours, *theirs], ranked(filled(lines)), notes)

    def differences(self, metric: str) -> Table:
        """Each row less the baseline, pair by pair."""
        heads = [Head(self._title(column, metric), _PARTS) for column in self.spec.columns]
        rows = [(row, name) for row, name in self._lines() if name != self.spec.baseline]
        columns = [self._compared([name for _, name in rows], column.name, metric) for column in self.spec.columns]
        lines = [Line(name, [cells[n] for cells in columns], row.group) for n, (row, name) in enumerate(rows)]
        notes = ["Mean over pairs of runs with the same seed and the same draw of the labels."]
        tested = max(sum(bool(cell.numbers) and cell.numbers[3] is not None for cell in cells) for cells in columns)
        if tested:
            number = "1 comparison" if tested == 1 else f"{tested} comparisons"
            notes += ["In brackets: its 95 % confidence interval (Student's t)."]
            notes += [f"p: paired t-test, corrected by Holm's method for {number} in a column."]
        title = f"{self.spec.title}: difference to {self.spec.baseline} in {metric}"
        return Table(title, heads, filled(lines), notes)

    def _compared(self, lines: list[str], column: str, metric: str) -> list[Cell]:
        base = self._values(self.spec.baseline, column, metric)
        return _differences([paired_difference(self._values(line, column, metric), base) for line in lines])

    def between_rules(self, metric: str, columns: list[str]) -> Table:
        """What each selection rule gives more or less than the first one, row by row."""
        first, *others = self.spec.selections
        heads, cells, lines = list[Head](), list[list[Cell]](), list(self._lines())
        for column, rule in product(columns, others):

            def values(line: str, rule: str, column: str = column) -> dict[tuple[int, int], float]:
                return self._values(line, shown_name(column, rule), metric)

            heads.append(Head(shown_name(column, rule), _PARTS))
            cells.append(_differences([paired_difference(values(n, rule), values(n, first)) for _, n in lines]))
        found = [Line(name, [cell[n] for cell in cells], row.group) for n, (row, name) in enumerate(lines)]
        notes = [
            "The same training runs, seen by each rule: pairs have the seed and the draw of the labels in common.",
            "In brackets: the 95 % confidence interval (Student's t); p: paired t-test, corrected by Holm's method.",
        ]
        return Table(f"{self.spec.title}: difference to the rule {first} in {metric}", heads, filled(found), notes)

    def thresholds(self, column: Column) -> Table:
        """F1 on the test set by what a threshold was made from, and what was expected of it without a clean label."""
        heads = [Head(title, ("mean", "sd", "runs")) for title in (*_THRESHOLDS, _ERROR, *_COUNTS)]
        lines = []
        for row, name in self._lines():
            found = self._of(name, column.name)

            def cell(key: str, less: str = "", found: list[Result] = found) -> Cell:
                pairs = [(result.test.get(key), result.test.get(less) if less else 0.0) for result in found]
                return _figure(summarise([value - base for value, base in pairs if None not in (value, base)]))  # type: ignore[operator]

            cells = [cell(key) for key in _THRESHOLDS.values()]
            cells += [cell("expected CF1", "observed CF1"), *(cell(key) for key in _COUNTS.values())]
            lines.append(Line(name, cells, row.group))
        notes = [
            "Thresholds for each class are fitted to held-out rows: `observed` by the written labels alone, `clean` by"
            " all their labels, which bounds what the former can reach. Calibrated: two numbers by the written labels.",
            "Expected: CF1 at the thresholds `observed` and labels of a held-out row, from the written labels alone.",
        ]
        where = f", {column.name}" if column.name else ""
        return Table(f"{self.spec.title}{where}: F1 without clean labels", heads, filled(lines), notes)

    def seconds(self) -> Table:
        heads = [Head(self._title(column, "seconds"), ("mean", "sd", "runs")) for column in self.spec.columns]
        lines = []
        for row, name in self._lines():
            each = [summarise([r.seconds for r in self._of(name, column.name)]) for column in self.spec.columns]
            lines.append(Line(name, [_figure(one, digits=1) for one in each], row.group))
        devices = sorted({result.device for result in self.results})
        return Table(f"{self.spec.title}: seconds of training", heads, filled(lines), [f"On {', '.join(devices)}."])

    def _lines(self) -> Iterator[tuple[Row, str]]:
        """Lines in the order of the spec; a row of which every value is shown has several."""
        for row in self.spec.rows:
            for name in dict.fromkeys(run.row for run in self.runs if run.spec_row == row.name) or {row.name: None}:
                yield row, name

    def _of(self, line: str, column: str) -> list[Result]:
        return [result for result in self.results if (result.row, result.column) == (line, column)]

    def _values(self, line: str, column: str, metric: str) -> dict[tuple[int, int], float]:
        """By draw and seed."""
        found = {(result.draw, result.seed): result.test.get(metric) for result in self._of(line, column)}
        return {place: value for place, value in found.items() if value is not None}

    def _cell(self, row: Row, line: str, column: Column, metric: str) -> Cell:
        asked = [run for run in self.runs if (run.row, run.column) == (line, column.name) and not run.trial]
        waiting = any((run.row, run.column) == (line, column.name) and run.trial for run in self.runs)
        summary = summarise(list(self._values(line, column.name, metric).values()))
        if summary is None or not asked:
            return Cell("not chosen yet" if waiting and not asked else "not run yet" if asked else "")
        short = f" ({summary.count} of {len(asked)})" if summary.count < len(asked) else ""
        return _figure(summary, short)

    def _printed(self, metric: str) -> list[tuple[Published, str]]:
        """Published columns: of every data set that a source has, also one that nothing is run on here."""
        found = []
        for table in (table for table in self.spec.published if metric == (table.metric or self.spec.metric)):
            names = [name for row in table.values.values() for name in (row if isinstance(row, dict) else [""])]
            found += [(table, name) for name in dict.fromkeys(names)]
        return found

    def _printed_head(self, table: Published, column: str, metric: str) -> Head:
        number = self.spec.published.index(table) + 1
        title = f"{column or metric} published [{number}] ({table.backbone}, {table.resolution} px)"
        return Head(title, ("mean", "sd"))

    def _published(self, table: Published, row: Row, column: str) -> Cell:
        found = table.value(row.name, column)
        cell = _figure(Summary(1, *found) if found else None)
        return replace(cell, numbers=cell.numbers[:2])

    def _title(self, column: Column, metric: str) -> str:
        return column.name or metric

    def _notes(self) -> list[str]:
        """What a reader must know about our numbers."""
        spec, results = self.spec, self.results
        notes = [spec.about] if spec.about else []
        if spec.scale_name != "full":
            notes.append(f"Scale: {spec.scale_name}.")
        bounds = [row.name for row in spec.rows if row.bound]
        aside = f"; left aside: {', '.join(bounds)}" if bounds else ""
        notes.append(f"Ours: mean ± standard deviation over runs. Best in bold, second best underlined{aside}.")
        if results:
            seeds, draws = (sorted({getattr(r, name) for r in results}) for name in ("seed", "draw"))
            nets = _unique(results, lambda r: f"{r.recipe['model']['backbone']}, {r.recipe['data']['size']} px")
            notes.append(f"Seeds {_list(seeds)}; draws of the labels {_list(draws)}; {'; '.join(nets)}.")
            notes.append(f"Weights chosen by: {'; '.join(_unique(results, lambda r: r.rule))}.")
        for row in spec.rows:
            if row.grid and row.choose == "validation":
                chosen = _unique([r for r in results if r.spec_row == row.name], _choice)
                notes += [f"{row.name}: chosen by the score of held-out rows: {text}." for text in chosen]
        if self.without_data:
            notes.append(f"Not run, since no images were named: {', '.join(self.without_data)}.")
        return notes


_PARTS = ("difference", "low", "high", "p", "pairs")
_THRESHOLDS = {
    "CF1 at 0.5": "raw CF1",
    "CF1 at 0.5, calibrated": "calibrated CF1",
    "CF1, thresholds from observed labels": "observed CF1",
    "CF1, thresholds from clean labels (bound)": "clean CF1",
    "CF1 expected": "expected CF1",
}
_ERROR = "error of it"
_COUNTS = {"labels a row, expected": "labels expected", "true": "labels true"}


def _differences(found: list[Difference | None]) -> list[Cell]:
    corrected = iter(holm([one.p for one in found if one is not None and one.p is not None]))
    return [_difference(one, corrected) for one in found]


def _choice(result: Result) -> str:
    where = f" ({result.column})" if result.column else ""
    return ", ".join(f"{key} = {value}" for key, value in result.grid.items()) + where


def _unique(results: list[Result], text: Callable[[Result], str]) -> list[str]:
    return list(dict.fromkeys(text(result) for result in results))


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _figure(summary: Summary | None, note: str = "", digits: int = DIGITS) -> Cell:
    if summary is None:
        return Cell()
    spread = "" if summary.deviation is None else f" ± {summary.deviation:.{digits}f}"
    numbers = (summary.mean, summary.deviation, summary.count)
    return Cell(f"{summary.mean:.{digits}f}{spread}{note}", numbers=numbers)


def _difference(one: Difference | None, corrected: Iterator[float]) -> Cell:
    if one is None:
        return Cell()
    if one.low is None or one.high is None or one.p is None:
        return Cell(f"{_signed(one.mean)} (1 pair)", numbers=(one.mean, None, None, None, one.count))
    p = next(corrected)
    text = f"{_signed(one.mean)} [{_signed(one.low)}, {_signed(one.high)}], {_chance(p)}"
    return Cell(text, numbers=(one.mean, one.low, one.high, p, one.count))


def _signed(value: float) -> str:
    return f"{value:+.{DIGITS}f}".replace("-", "−")


def _chance(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
