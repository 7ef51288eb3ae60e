"""What must fit together in a spec: names that are known somewhere else in it, and values with a range."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pluralis.bench import figures
from pluralis.bench.metric_names import check_metric
from pluralis.errors import RecipeError, nearest

if TYPE_CHECKING:
    from pluralis.bench.spec import Row, Spec

SCALES = ("full", "small", "embedded")


def check(spec: Spec) -> None:
    """Raise what is wrong with a spec as it stands in its file."""
    _known(spec.scale, SCALES, "[scale] has")
    limited: list[Any] = [*spec.rows, *spec.columns, *spec.overrides]
    for part in limited:
        _known(part.scales, SCALES, "scales has")
    if not spec.rows:
        raise RecipeError("there are no [[rows]]: give at least one, with a name and a method")
    named: list[Any] = [*spec.rows, *spec.columns]
    if not all(part.name.strip() for part in named):
        raise RecipeError("a row or a column has an empty name: give each a name of its own")
    for name in spec.scale or ("full",):
        _check_scale(spec.at(name))
    _check_names(spec)
    for metric in (spec.metric, *spec.also):
        check_metric(metric, spec)
    _check_seeds(spec)
    for name in spec.scale or ("full",):
        _check_seeds_a_draw(spec.at(name))
    for row in spec.rows:
        _check_grid(row)
    _check_selections(spec)
    for number, drawing in enumerate(spec.figures, 1):
        try:
            _check_figure(drawing, spec)
        except RecipeError as error:
            raise RecipeError(f"[[figures]] number {number}: {error}") from None


def _check_seeds(spec: Spec) -> None:
    seeded: list[Any] = [spec, *spec.rows, *spec.scale.values(), *spec.overrides]
    for given in (part.seeds for part in seeded if part.seeds is not None):
        each = given if isinstance(given, list) else [given]
        if not each or min(each) < 0 or len(set(each)) < len(each):
            raise RecipeError(f"seeds is {given}: give a number of seeds, or a list of different ones from 0 on")
    drawn: list[Any] = [spec, *spec.scale.values()]
    for draws in (part.draws or [] for part in drawn):
        if len(set(draws)) < len(draws) or min(draws, default=0) < 0:
            raise RecipeError(f"draws is {draws}: give a list of different seeds from 0 on")


def _check_seeds_a_draw(spec: Spec) -> None:
    """At one scale: they are taken from the seeds, for each of the draws."""
    each, seeds = spec.seeds_a_draw, spec.seeds if isinstance(spec.seeds, int) else len(spec.seeds)
    if each and (each < 0 or each >= seeds or len(spec.draws) < 2):
        raise RecipeError(
            f"seeds_a_draw is {each}, with {seeds} seeds and {len(spec.draws)} draws at the scale {spec.scale_name}:"
            " give fewer than there are seeds, for two draws or more, or leave it out"
        )


def _check_figure(drawing: dict[str, Any], spec: Spec) -> None:
    """Its kind and options, and the names in them, which must be those of the spec."""
    if not isinstance(drawing.get("kind"), str):
        raise RecipeError('it has no kind: name one with kind = "…"')
    if not isinstance(drawing.get("title", ""), str):
        raise RecipeError(f"title is {drawing['title']!r}; give a text")
    if not isinstance(drawing.get("scales", []), list):
        raise RecipeError(f"scales is {drawing['scales']!r}; give a list of scales")
    _known(drawing.get("scales", []), SCALES, "scales has")
    options = figures.options_of(drawing, spec.baseline)
    figures.check(drawing["kind"], options)
    rows = [row.name for row in spec.rows]
    lines = tuple(f"{row.name}, " for row in spec.rows if row.grid and row.choose == "all")
    named = [*options.get("rows", []), *filter(None, [options.get("baseline")])]
    _known([name for name in named if not name.startswith(lines)], rows, "it has the row")
    columns = [column.name for column in spec.shown_columns() if column.name]
    _known(options.get("columns", []), columns, "columns has")
    if "metric" in options:
        check_metric(options["metric"], spec, "the metric")


def _check_scale(spec: Spec) -> None:
    """At one scale there are rows, names are unique, the baseline is a row, and every cell has a base."""
    if not spec.rows:
        raise RecipeError(f"there are no [[rows]] at the scale {spec.scale_name}: name it in the scales of some")
    rows, columns = [row.name for row in spec.rows], [column.name for column in spec.columns]
    for names, where in ((rows, "[[rows]]"), (columns, "[[columns]]")):
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise RecipeError(f"{where} has {twice[0]!r} twice: give each a name of its own")
    if spec.baseline and spec.baseline not in rows:
        raise RecipeError(f"baseline is {spec.baseline!r}, which is no row: {nearest(spec.baseline, rows)}")
    if spec.baseline:
        _check_baseline(spec, spec.row(spec.baseline))
    for row, column in ((row, column) for row in spec.rows for column in spec.columns):
        if spec.seeds_in(row, column.name) and not spec.base_in(row, column):
            place = f"row {row.name!r}" + (f", column {column.name!r}" if column.name else "")
            raise RecipeError(f'{place} has no recipe to start from: name one with base = "…"')


def _check_baseline(spec: Spec, row: Row) -> None:
    if row.grid and row.choose == "all":
        raise RecipeError(f"baseline is {row.name!r}, which has a line for each value of its grid: take another row")
    if not any(spec.seeds_in(row, column.name) for column in spec.columns):
        raise RecipeError(f"baseline is {row.name!r}, which has no runs of ours: take a row with seeds")


def _check_names(spec: Spec) -> None:
    rows, columns = [row.name for row in spec.rows], [column.name for column in spec.columns]
    for override in spec.overrides:
        _known(override.rows, rows, "[[overrides]], rows has")
        _known(override.columns, columns, "[[overrides]], columns has")
    for table in spec.published:
        if table.metric:
            _known([table.metric], (spec.metric, *spec.also), "[[published]] has the metric")
        for row, found in table.values.items():
            _known([row], rows, "[[published]], values has the row")
            if isinstance(found, dict) != bool(columns):
                how = f"by column: {', '.join(columns)}" if columns else "as one figure: there are no columns"
                raise RecipeError(f"[[published]], values of {row!r} must be given {how}")
            for column, value in found.items() if isinstance(found, dict) else [("", found)]:
                _known([column] if column else [], columns, f"[[published]], values of {row!r} has the column")
                figure(value, f"[[published]], values of {row!r}")


def _check_selections(spec: Spec) -> None:
    if spec.selections and spec.selection:
        raise RecipeError("there are both selection and selections: leave one of them out")
    if len(set(spec.selections)) < len(spec.selections):
        raise RecipeError(f"selections is {spec.selections}: name each rule once")
    given = [spec.views, *(row.views or [] for row in spec.rows)]
    views = [name for names in given for name in names if name != "fast"]
    if spec.watch_rules and views:
        raise RecipeError(
            f"selections and thresholds are measured with the views fast: leave out the views {views[0]!r}"
        )


def _check_grid(row: Row) -> None:
    for key, values in row.grid.items():
        if not values:
            raise RecipeError(f"row {row.name!r}: the grid of {key!r} is empty: give a list of values")
        if "." not in key:
            raise RecipeError(f"row {row.name!r}: the grid has {key!r}: give a whole key, such as train.lr")


def figure(value: Any, where: str) -> tuple[float, float | None]:
    """Mean and standard deviation from a number, or from a text such as "89.83 ± 0.12"."""
    try:
        numbers = [] if isinstance(value, bool) else [float(part) for part in str(value).split("±")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(map(math.isfinite, numbers)):
        raise RecipeError(f'{where}: {value!r} is no figure: write 89.83 or "89.83 ± 0.12"')
    return numbers[0], numbers[1] if len(numbers) == 2 else None


def _known(names: Iterable[str], known: Iterable[str], where: str) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            raise RecipeError(f"{where} {name!r}, which is not known: {nearest(name, known)}")
