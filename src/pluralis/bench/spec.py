"""The spec of a bench: which methods are compared, on which data, how often, and beside which published numbers."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pluralis.bench.files import find
from pluralis.bench.names import shown_name
from pluralis.bench.spec_checks import check, figure
from pluralis.bench.toml_tables import build
from pluralis.errors import RecipeError, nearest

Settings = dict[str, Any]
"""Values by dotted key of a recipe, such as `train.lr`."""


@dataclass(frozen=True)
class Row:
    """One line of the table: a method and its settings."""

    name: str
    method: str = ""  # as `pluralis methods` lists them; "" = the base's own
    group: str = ""  # a heading over rows
    base: str = ""  # a recipe of its own
    settings: Settings = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)  # values by dotted key
    choose: Literal["validation", "all"] = "validation"  # the best on held-out rows, or a line for each
    search: Literal["product", "in-turn"] = "product"  # every combination, or one key after the other
    seeds: int | list[int] | None = None  # 0 = no runs: published numbers alone
    views: list[str] | None = None  # looks at a test image, beside "fast"
    bound: bool = False  # an upper bound: never marked as best
    scales: list[str] = field(default_factory=list)  # where the row is; [] = everywhere


@dataclass(frozen=True)
class Column:
    """One column of the table: a data set, a share of known labels, a head."""

    name: str = ""
    base: str = ""
    settings: Settings = field(default_factory=dict)
    scales: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Override:
    """What only some rows in some columns have."""

    rows: list[str] = field(default_factory=list)  # [] = every one
    columns: list[str] = field(default_factory=list)
    scales: list[str] = field(default_factory=list)
    base: str = ""
    settings: Settings = field(default_factory=dict)
    seeds: int | list[int] | None = None
    skip: bool = False  # such cells stay empty

    def covers(self, row: str, column: str) -> bool:
        return (not self.rows or row in self.rows) and (not self.columns or column in self.columns)


@dataclass(frozen=True)
class Scale:
    """What is different at one scale."""

    base: str = ""
    settings: Settings = field(default_factory=dict)
    seeds: int | list[int] | None = None
    draws: list[int] | None = None
    seeds_a_draw: int | None = None
    about: str = ""


@dataclass(frozen=True)
class Published:
    """Numbers that others printed: `values` by row, and by column where there are columns."""

    source: str
    backbone: str
    resolution: int
    values: dict[str, Any]
    metric: str = ""  # what they are; "" = the metric of the spec

    def value(self, row: str, column: str) -> tuple[float, float | None] | None:
        """Mean and standard deviation."""
        found = self.values.get(row)
        found = found.get(column) if isinstance(found, dict) else found
        return None if found is None else figure(found, f"published, row {row!r}")


@dataclass(frozen=True)
class Spec:
    title: str
    base: str = ""
    about: str = ""  # what is repeated: paper and table
    metric: str = "mAP"  # mAP | CF1 | OF1, or of other views: "standard mAP"
    also: list[str] = field(default_factory=list)  # more metrics, a table each
    baseline: str = ""  # row that the others are compared with
    seeds: int | list[int] = 3  # a number, or which
    draws: list[int] = field(default_factory=list)  # seeds of the protocol; [] = the recipe's own
    seeds_a_draw: int = 0  # how many of the seeds each draw is trained with, in turn; 0 = all
    selection: Literal["", "last", "clean", "observed"] = ""  # over the recipe's own rule
    selections: list[Literal["last", "clean", "observed"]] = field(default_factory=list)  # a column for each of them
    thresholds: bool = False  # a table of F1 at thresholds that need no clean label
    views: list[str] = field(default_factory=list)
    keep: bool = False  # the folders of finished runs, which some figures need
    seconds: bool = False  # a table of the time that training took
    settings: Settings = field(default_factory=dict)
    scale: dict[str, Scale] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)
    overrides: list[Override] = field(default_factory=list)
    published: list[Published] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)
    file: Path = Path()  # where it was read

    @classmethod
    def load(cls, path: Path, scale: str = "") -> Spec:
        """The spec in a file, at one scale (by default the full one), with every name in it checked."""
        file = find(str(path), Path(), "the spec")
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise RecipeError(f"cannot read the spec {file}: {error}") from error
        try:
            spec = build(cls, values, "", "spec")
            if "file" in values:
                raise RecipeError("there is no key 'file' in a spec: leave it out")
            check(spec)
            return replace(spec.at(scale), file=file)
        except RecipeError as error:
            raise RecipeError(f"{file}: {error}") from None

    def at(self, scale: str) -> Spec:
        """This spec at one scale: what does not belong to it is left out."""
        name, known = scale or "full", self.scale or ("full",)
        if name not in known:
            raise RecipeError(f"there is no scale {name!r}; {nearest(name, known)}")
        part = self.scale.get(name, Scale())
        return replace(
            self,
            base=part.base or self.base,
            about=" ".join(filter(None, (self.about, part.about))),
            seeds=self.seeds if part.seeds is None else part.seeds,
            draws=self.draws if part.draws is None else part.draws,
            seeds_a_draw=self.seeds_a_draw if part.seeds_a_draw is None else part.seeds_a_draw,
            settings={**self.settings, **part.settings},
            scale={name: part},
            rows=_here(self.rows, name),
            columns=_here(self.columns, name) or [Column()],
            overrides=_here(self.overrides, name),
            figures=[drawing for drawing in self.figures if name in drawing.get("scales", [name])],
        )

    @property
    def scale_name(self) -> str:
        return next(iter(self.scale), "full")

    @property
    def rule(self) -> str:
        """The rule that chooses the weights of each run, where it is not the recipe's own.

        Of several it is `clean` if that is among them: it holds out every row that the others look at.
        """
        return next((rule for rule in ("clean", "observed", "last") if rule in self.selections), self.selection)

    @property
    def rules(self) -> list[str]:
        """Those that the table shows side by side; one without a name where there is nothing to compare."""
        return [*self.selections] or [""]

    @property
    def watch_rules(self) -> bool:
        """Whether runs look at every rule after each epoch."""
        return bool(self.selections) or self.thresholds

    def shown_columns(self) -> list[Column]:
        """Those of the table: under several selection rules each column is there for each of them."""
        each = product(self.columns or [Column()], self.rules)
        return [replace(column, name=shown_name(column.name, rule)) for column, rule in each]

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def seeds_in(self, row: Row, column: str) -> list[int]:
        """The seeds of one cell; none where it is to stay empty."""
        given = self.seeds if row.seeds is None else row.seeds
        for override in self.covering(row.name, column):
            given = 0 if override.skip else given if override.seeds is None else override.seeds
        return list(range(given)) if isinstance(given, int) else given

    def base_in(self, row: Row, column: Column) -> str:
        """The recipe that one cell starts from: the most special one that is named."""
        special = [override.base for override in self.covering(row.name, column.name)]
        return next(filter(None, (*reversed(special), row.base, column.base, self.base)), "")

    def covering(self, row: str, column: str) -> list[Override]:
        return [override for override in self.overrides if override.covers(row, column)]


def _here(parts: list[Any], scale: str) -> list[Any]:
    return [part for part in parts if not part.scales or scale in part.scales]
