"""From a spec to runs: a recipe for each row, column, draw and seed, and settings chosen as far as results allow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pluralis.bench.buildable import check_buildable
from pluralis.bench.files import find
from pluralis.bench.identity import DIGITS, data_hash, run_key, source_part
from pluralis.bench.names import line_name
from pluralis.bench.runs import Run, at_rule
from pluralis.bench.spec import Column, Row, Spec
from pluralis.config import AUTO, Recipe
from pluralis.errors import DataError, RecipeError, nearest
from pluralis.views import get_views

Score = Callable[[Run], float | None]
"""The score of a run on held-out rows, −∞ where it diverged, None where it has none yet."""


@dataclass(frozen=True)
class Place:
    """Where files are, which no spec can know: images and labels by column, or under "" for all."""

    out: Path
    images: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


def digits_file(out: Path) -> Path:
    """The weights that the word "digits" stands for."""
    return out.resolve() / "digits.safetensors"


def decoded_folder(out: Path) -> Path:
    """Where runs leave decoded pictures for each other, if their recipe names no other place."""
    return out.resolve() / "decoded"


class Plan:
    """All runs of a spec. `settings` lie over those of the spec, as texts `section.key=value`.

    Where several specs share a folder, each has a `name`, and `hashes` spares them to read the same data again.
    """

    def __init__(
        self, spec: Spec, place: Place, settings: list[str], name: str = "", hashes: dict[str, str] | None = None
    ) -> None:
        self.spec, self.place, self.settings, self.name = spec, place, settings, name
        self._hashes = {} if hashes is None else hashes
        self._recipes: dict[tuple[str, str, str], Recipe] = {}
        self._runs: dict[tuple[Any, ...], Run] = {}
        columns = [column.name for column in spec.columns]
        for column in filter(None, (*place.images, *place.labels)):
            if column not in columns:
                raise RecipeError(f"--images and --labels: there is no column {column!r}; {nearest(column, columns)}")
        self.runs(lambda run: None)  # what is wrong shows before any work

    def runs(self, score: Score) -> list[Run]:
        """Those that are known now: one seed of every row before the next, so that a table is soon whole."""
        if not any(row.grid and row.choose == "validation" for row in self.spec.rows):
            return list(self._all)  # asked for many times a second
        return self._sorted(score)

    @cached_property
    def _all(self) -> list[Run]:
        return self._sorted(lambda run: None)

    def _sorted(self, score: Score) -> list[Run]:
        found: dict[tuple[str, str, str], Run] = {}
        for run in self._each(score):
            known = found.get(place := (run.key, run.row, run.column))
            if known is None or (known.trial and not run.trial):
                found[place] = run
        return sorted(found.values(), key=lambda run: run.order)

    @cached_property
    def without_data(self) -> list[str]:
        """Columns that stay empty since nobody said where their images are."""
        return [c.name for c in self.spec.columns if self._has_runs(c) and not self._has_data(c)]

    def _each(self, score: Score) -> Iterator[Run]:
        if self.without_data and len(self.without_data) == len([c for c in self.spec.columns if self._has_runs(c)]):
            named = " or --images COLUMN=DIR" if self.spec.columns[0].name else ""
            raise DataError(f"{self.spec.file} has no data: name the folder of the images with --images DIR{named}")
        for column, rule in itertools.product(self.spec.columns, self.spec.rules):
            if column.name not in self.without_data:
                for run in self._column(column, lambda run, rule=rule: score(at_rule(run, rule)), rule):  # type: ignore[misc]
                    yield at_rule(run, rule)

    def _column(self, column: Column, score: Score, selection: str) -> Iterator[Run]:
        for row in self.spec.rows:
            seeds = self.spec.seeds_in(row, column.name)
            if not seeds:
                continue
            if not row.grid or row.choose == "all":
                for values in _product(row.grid):
                    yield from self._all_seeds(row, column, seeds, values, line_name(row.name, values))
                continue
            trials, chosen = self._choice(row, column, seeds[0], score, selection)
            yield from trials
            if chosen is not None:
                yield from self._all_seeds(row, column, seeds, chosen, row.name)

    def _choice(
        self, row: Row, column: Column, seed: int, score: Score, selection: str
    ) -> tuple[list[Run], dict[str, Any] | None]:
        """What is tried, as far as that is known, and what is chosen once every trial has a score."""
        trials: list[Run] = []
        middle = {key: choices[len(choices) // 2] for key, choices in row.grid.items()}
        if selection == "last":  # beside other rules: who chooses nothing has no settings chosen either
            return trials, middle

        def best(among: list[dict[str, Any]]) -> dict[str, Any] | None:
            tried = [self._run(row, column, seed, 0, values, row.name, trial=True) for values in among]
            trials.extend(tried)
            scores = [score(run) for run in tried]
            known = [value for value in scores if value is not None]
            if len(known) < len(scores) or max(known) == -math.inf:
                return None
            return among[scores.index(max(known))]

        if row.search == "product":
            return trials, best(list(_product(row.grid)))
        values: dict[str, Any] | None = middle
        for key, choices in row.grid.items():
            values = best([{**values, key: choice} for choice in choices]) if values is not None else None
        return trials, values

    def _all_seeds(
        self, row: Row, column: Column, seeds: list[int], values: dict[str, Any], line: str
    ) -> Iterator[Run]:
        each = self.spec.seeds_a_draw or len(seeds)
        for place, seed in enumerate(seeds):
            for draw in range(max(len(self.spec.draws), 1)):
                if (place - draw) % len(seeds) < each:  # draw 0 has the first seeds, draw 1 begins one later, …
                    yield self._run(row, column, seed, draw, values, line)

    def _run(
        self, row: Row, column: Column, seed: int, draw: int, values: dict[str, Any], line: str, trial: bool = False
    ) -> Run:
        asked = (row.name, column.name, seed, draw, line, trial, repr(values))
        if asked not in self._runs:
            self._runs[asked] = self._make(row, column, seed, draw, values, line, trial)
        return self._runs[asked]

    def _make(
        self, row: Row, column: Column, seed: int, draw: int, values: dict[str, Any], line: str, trial: bool
    ) -> Run:
        spec = self.spec
        given: dict[str, Any] = {"run.seed": seed}
        if spec.draws:
            given["data.protocol_seed"] = spec.draws[draw]
        views = [name for name in (spec.views if row.views is None else row.views) if name != "fast"]
        with self._named(row, column):
            recipe = self._recipe(row, column, values).with_settings([], given)
            for name in views:
                get_views(name)
            self._check(row, recipe)
        data = self._data_hash(recipe)
        key = run_key(recipe, views, data)
        if recipe.model.weights == DIGITS:
            recipe = replace(recipe, model=replace(recipe.model, weights=str(digits_file(self.place.out))))
        if not recipe.run.decoded:
            recipe = replace(recipe, run=replace(recipe.run, decoded=str(decoded_folder(self.place.out))))
        rank = spec.seeds_in(row, column.name).index(seed)
        order = (rank, draw, spec.rows.index(row), spec.columns.index(column))
        drawn = recipe.data.draw_seed
        place = (line, row.name, column.name, seed, drawn, values)
        return Run(key, *place, recipe, views, data, trial, order, keep=spec.keep, spec=self.name)

    def _recipe(self, row: Row, column: Column, values: dict[str, Any]) -> Recipe:
        """Of one cell, whatever the seed and the draw."""
        asked = (row.name, column.name, repr(values))
        if asked not in self._recipes:
            self._recipes[asked] = self._layered(row, column, values)
        return self._recipes[asked]

    def _layered(self, row: Row, column: Column, values: dict[str, Any]) -> Recipe:
        """Later ones win: base, method, spec, column, row, overrides, grid, what the command line says."""
        spec = self.spec
        base = find(spec.base_in(row, column), spec.file.parent, "the base")
        given: dict[str, Any] = {}
        if row.method and Recipe.load(base).method.name != row.method:
            given["method"] = {"name": row.method}  # the parameters of another one mean nothing to it
        layers = [spec.settings, column.settings, row.settings]
        layers += [override.settings for override in spec.covering(row.name, column.name)]
        for layer in (*layers, values):  # a key that comes again takes effect at its last place
            given = {key: value for key, value in given.items() if key not in layer} | deepcopy(layer)
        self._refuse_seeds([*given, *(text.partition("=")[0].strip() for text in self.settings)])
        if spec.rule:
            given["select.rule"] = spec.rule
        if spec.watch_rules:
            given["run.watch_rules"] = True
        for key, named in (("data.images", self.place.images), ("data.labels", self.place.labels)):
            where = named.get(column.name) or named.get("")
            given |= {key: where} if where else {}
        recipe = Recipe.load(base, self.settings, given)
        if recipe.select.images is None and recipe.method.name in (AUTO, "relabel"):
            # Left open, the rule would decide whether held-out images teach: no two of a table would be alike.
            recipe = replace(recipe, select=replace(recipe.select, images=False))
        if recipe.model.dropout is None:  # nor is it to differ by the method where nobody said so
            recipe = replace(recipe, model=replace(recipe.model, dropout=0.0))
        return recipe

    def _refuse_seeds(self, keys: list[str]) -> None:
        """What seeds and draws decide cannot be set beside them."""
        for key, instead in (("run.seed", "seeds"), ("data.protocol_seed", "draws" if self.spec.draws else "")):
            if instead and key in keys:
                raise RecipeError(f"{key} has no effect, as {instead} decide it: give {instead} in the spec instead")

    def _check(self, row: Row, recipe: Recipe) -> None:
        if not recipe.data.test:
            raise RecipeError("there is no test set to measure on: name it with data.test in the base or the settings")
        check_buildable(recipe)
        if row.grid and row.choose == "validation" and recipe.select.rule == "last" and not self.spec.selections:
            raise RecipeError(
                'choose = "validation" goes by the score of held-out rows, and the rule "last" gives none:'
                ' set selection = "clean" or "observed", or choose = "all"'
            )

    def _has_runs(self, column: Column) -> bool:
        return any(self.spec.seeds_in(row, column.name) for row in self.spec.rows)

    def _has_data(self, column: Column) -> bool:
        for row in (row for row in self.spec.rows if self.spec.seeds_in(row, column.name)):
            with self._named(row, column):
                data = self._recipe(row, column, next(_product(row.grid))).data
            if not data.images and data.format != "scenes":
                return False
        return True

    @contextmanager
    def _named(self, row: Row, column: Column) -> Iterator[None]:
        """Errors say whose recipe it is."""
        try:
            yield
        except RecipeError as error:
            place = f"row {row.name!r}" + (f", column {column.name!r}" if column.name else "")
            raise RecipeError(f"{self.spec.file}, {place}: {error}") from None

    def _data_hash(self, recipe: Recipe) -> str:
        text = source_part(recipe.data)
        if text not in self._hashes:
            self._hashes[text] = data_hash(recipe.data)
        return self._hashes[text]


def _product(grid: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))
