"""The figures that a table can show, by the names that specs have for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pluralis.errors import RecipeError, nearest

if TYPE_CHECKING:
    from pluralis.bench.spec import Spec

MEASURES = ("mAP", "CF1", "OF1")
GUESSES = ("guessed absent accuracy", "guessed present accuracy")  # of methods that guess labels
MEMBERS = ("f", "g")  # of methods with two networks
VIEWS = ("standard", "thorough")
THRESHOLDS = ("raw", "calibrated", "observed", "clean", "expected")


def check_metric(metric: str, spec: Spec, where: str = "metric") -> None:
    """Refuse a name that no run of the spec will have a figure for."""
    always = [*MEASURES, *GUESSES, *_each(MEMBERS)]
    views = {name for names in (spec.views, *(row.views or [] for row in spec.rows)) for name in names}
    if metric in (*always, *_each(views)) or (spec.watch_rules and metric in _at_thresholds()):
        return
    kind = metric.split(" ")[0]
    if metric in _each(VIEWS):
        raise RecipeError(f'{where} {metric!r} needs the views {kind}: add views = ["{kind}"]')
    if metric in _at_thresholds():
        raise RecipeError(f"{where} {metric!r} needs the thresholds: add thresholds = true")
    known = [*MEASURES, *_each(VIEWS), *_at_thresholds(), *GUESSES, *_each(MEMBERS)]
    raise RecipeError(f"{where} {metric!r} is not known; {nearest(metric, known)}")


def _each(kinds: set[str] | tuple[str, ...]) -> list[str]:
    return [f"{kind} {measure}" for kind in sorted(kinds) for measure in MEASURES]


def _at_thresholds() -> list[str]:
    return [f"{kind} {measure}" for kind in THRESHOLDS for measure in MEASURES[1:]]
