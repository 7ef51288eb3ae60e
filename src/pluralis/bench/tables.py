"""The tables of a bench: our means and spreads, published numbers in own columns, differences to a baseline."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product

from pluralis.bench.names import shown_name
from pluralis.bench.runs import Run
from pluralis.bench.spec import Column, Published, Row, Spec
from pluralis.bench.statistics import Summary, paired_difference, summarise
from pluralis.bench.store import Result
from pluralis.bench.table_cells import PARTS, Compared, difference_cells, difference_notes, figure_cell
from pluralis.bench.table_model import Cell, Head, Line, Table, filled, ranked
from pluralis.bench.table_notes import code_notes, missing_notes, origin_notes


def make_tables(
    spec: Spec,
    runs: list[Run],
    results: list[Result],
    without_data: list[str],
    failed: Collection[str] = (),
    settings: Sequence[str] = (),
) -> list[Table]:
    """A table for each metric, one of differences to the baseline beside it, and what else the spec asks for.

    `runs` are all that the table is to hold, `results` those that are there, and `failed` the keys of those that were
    tried in vain. `settings` lie over those of the spec.
    """
    notes = [*origin_notes(spec, settings, [result for result in results if not result.failure])]
    notes += [*code_notes(results), *missing_notes(runs, results, failed, without_data)]
    table = _Tables(replace(spec, columns=spec.shown_columns()), runs, results, failed, notes)
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
    def __init__(
        self, spec: Spec, runs: list[Run], results: list[Result], failed: Collection[str], notes: list[str]
    ) -> None:
        self.spec, self.runs, self.failed, self.notes = spec, runs, failed, notes
        self.results = [result for result in results if not result.failure]
        self.diverged = [result for result in results if result.failure]

    def figures(self, metric: str) -> Table:
        """Ours, and what was published of this metric."""
        ours = [Head(self._title(column, metric), ("mean", "sd", "runs")) for column in self.spec.columns]
        lines = []
        for row, name in self._lines():
            cells = [self._cell(row, name, column, metric) for column in self.spec.columns]
            cells += [self._published(table, row, name, column) for table, column in self._printed(metric)]
            lines.append(Line(name, cells, row.group, row.bound))
        theirs = [self._printed_head(table, column, metric) for table, column in self._printed(metric)]
        shown = [table for table, _ in self._printed(metric)]
        sources = [f"[{n}] {table.source}" for n, table in enumerate(self.spec.published, 1) if table in shown]
        notes = [*(self.notes if metric == self.spec.metric else []), *sources]
        return Table(f"{self.spec.title}: {metric}", [*ours, *theirs], ranked(filled(lines)), notes)

    def differences(self, metric: str) -> Table:
        """Each row less the baseline, pair by pair."""
        rows = [(row, name) for row, name in self._lines() if name != self.spec.baseline]
        found: dict[str, list[Compared]] = {}
        for column in self.spec.columns:
            base = (self.spec.baseline, column.name)
            each = [self._compare((name, column.name), base, metric) for _, name in rows]
            found[self._title(column, metric)] = each
        title = f"{self.spec.title}: difference to {self.spec.baseline} in {metric}"
        note = "Mean over pairs of runs with the same seed and the same draw of the labels."
        return _compared(title, rows, found, note)

    def between_rules(self, metric: str, columns: list[str]) -> Table:
        """What each selection rule gives more or less than the first one, row by row."""
        first, *others = self.spec.selections
        rows, found = list(self._lines()), dict[str, list[Compared]]()
        for column, rule in product(columns, others):
            here, base = shown_name(column, rule), shown_name(column, first)
            found[here] = [self._compare((name, here), (name, base), metric) for _, name in rows]
        chosen = [row.name for row in self.spec.rows if row.grid and row.choose == "validation"]
        note = "Pairs have the seed and the draw of the labels in common"
        if chosen:
            note += f"; each rule chooses the settings of {', '.join(chosen)} too, so that these may be other runs."
        else:
            note += ", and are the same training run, seen by each rule."
        return _compared(f"{self.spec.title}: difference to the rule {first} in {metric}", rows, found, note)

    def thresholds(self, column: Column) -> Table:
        """F1 on the test set by what a threshold was made from, and what was expected of it without a clean label."""
        heads = [Head(title, ("mean", "sd", "runs")) for title in (*_THRESHOLDS, _ERROR, *_COUNTS)]
        lines = []
        for row, name in self._lines():
            found, asked = self._of(name, column.name), self._asked(name, column.name)

            def cell(key: str, less: str = "", found: list[Result] = found, asked: int = len(asked)) -> Cell:
                pairs = [(result.test.get(key), result.test.get(less) if less else 0.0) for result in found]
                known = [value - base for value, base in pairs if value is not None and base is not None]
                return figure_cell(summarise(known), asked)

            cells = [cell(key) for key in _THRESHOLDS.values()]
            cells += [cell("expected CF1", "observed CF1"), *(cell(key) for key in _COUNTS.values())]
            lines.append(Line(name, cells, row.group))
        notes = [
            "Thresholds for each class are fitted to held-out rows: `observed` by the written labels alone, `clean` by"
            " all their labels, which few users have. Calibrated: two numbers by the written labels.",
            "Expected: CF1 at the thresholds `observed` and labels of a held-out row, from the written labels alone.",
        ]
        where = f", {column.name}" if column.name else ""
        return Table(f"{self.spec.title}{where}: F1 without clean labels", heads, filled(lines), notes)

    def seconds(self) -> Table:
        heads = [Head(self._title(column, "seconds"), ("mean", "sd", "runs")) for column in self.spec.columns]
        lines = []
        for row, name in self._lines():
            cells = []
            for column in self.spec.columns:
                found = summarise([result.seconds for result in self._of(name, column.name)])
                cells.append(figure_cell(found, len(self._asked(name, column.name)), digits=1))
            lines.append(Line(name, cells, row.group))
        devices = sorted({result.device for result in self.results})
        return Table(f"{self.spec.title}: seconds of training", heads, filled(lines), [f"On {', '.join(devices)}."])

    def _lines(self) -> Iterator[tuple[Row, str]]:
        """Lines in the order of the spec; a row of which every value is shown has several, and one for what others
        published of it.
        """
        for row in self.spec.rows:
            names = dict.fromkeys(run.row for run in self.runs if run.spec_row == row.name)
            if not names or any(row.name in table.values for table in self.spec.published):
                names = {row.name: None, **names}
            for name in names:
                yield row, name

    def _of(self, line: str, column: str) -> list[Result]:
        return [result for result in self.results if (result.row, result.column) == (line, column)]

    def _values(self, line: str, column: str, metric: str) -> dict[tuple[int, int], float]:
        """By draw and seed."""
        found = {(result.draw, result.seed): result.test.get(metric) for result in self._of(line, column)}
        return {place: value for place, value in found.items() if value is not None}

    def _asked(self, line: str, column: str) -> dict[str, tuple[int, int]]:
        """Draw and seed of the runs that are to stand in a cell, by their keys."""
        here = [run for run in self.runs if (run.row, run.column) == (line, column) and not run.trial]
        return {run.key: (run.draw, run.seed) for run in here}

    def _compare(self, one: tuple[str, str], other: tuple[str, str], metric: str) -> Compared:
        """Two cells, each by its line and column."""
        values, base = self._values(*one, metric), self._values(*other, metric)
        asked = {*self._asked(*one).values()} & {*self._asked(*other).values()}
        return Compared(paired_difference(values, base), len(values.keys() & base.keys()), len(asked))

    def _cell(self, row: Row, line: str, column: Column, metric: str) -> Cell:
        place = (line, column.name)
        here = [run for run in self.runs if (run.row, run.column) == place]
        asked, found = self._asked(*place), self._of(*place)
        if not asked:
            return Cell("not chosen yet", open=True) if here else Cell()
        diverged = sum((result.row, result.column) == place for result in self.diverged)
        missing = len(found) + diverged < len(asked)
        summary = summarise(list(self._values(*place, metric).values()))
        if summary is not None:
            return replace(figure_cell(summary, len(asked)), open=missing)
        if found:
            return Cell("not measured", open=missing)
        failed = any(key in self.failed for key in asked)
        return Cell("failed" if failed else "diverged" if diverged else "not run yet", open=missing)

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

    def _published(self, table: Published, row: Row, line: str, column: str) -> Cell:
        found = table.value(row.name, column) if line == row.name else None
        cell = figure_cell(Summary(1, *found) if found else None)
        return replace(cell, numbers=cell.numbers[:2])

    def _title(self, column: Column, metric: str) -> str:
        return column.name or metric


_THRESHOLDS = {
    "CF1 at 0.5": "raw CF1",
    "CF1 at 0.5, calibrated": "calibrated CF1",
    "CF1, thresholds from observed labels": "observed CF1",
    "CF1, thresholds from clean labels": "clean CF1",
    "CF1 expected": "expected CF1",
}
_ERROR = "error of it"
_COUNTS = {"labels a row, expected": "labels expected", "true": "labels true"}


def _compared(title: str, rows: list[tuple[Row, str]], found: dict[str, list[Compared]], note: str) -> Table:
    """A table of differences, which are given by the title of their column."""
    columns = [difference_cells(column) for column in found.values()]
    lines = [Line(name, [cells[n] for cells in columns], row.group) for n, (row, name) in enumerate(rows)]
    return Table(title, [Head(head, PARTS) for head in found], filled(lines), [note, *difference_notes(found)])
