"""What a finished run would have given under another selection rule: all epochs were looked at by every rule."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pluralis.errors import RecipeError

if TYPE_CHECKING:
    from pluralis.bench.store import Result

_PREFIX = "rules "  # of `watch_rules.EveryRule` in the history of a run
_RULES = {
    "last": "last epoch",
    "clean": "clean: best mAP on fully labelled held-out rows",
    "observed": "observed: best likelihood of the written labels of held-out rows",
}


def under(result: Result, selection: str) -> Result:
    """The result at the epoch that a rule chooses; without a rule at its own, with what was measured of thresholds.

    The training is the same under every rule, so that no run is made twice. CF1 and OF1 are calibrated under `observed`
    and raw under the others, as in runs of these rules. What is kept of a run are the weights of its own choice: where
    another epoch is chosen, there is no folder and no average precision by class.
    """
    if result.failure:
        return result
    chosen = _chosen(result, selection) if selection else result.chosen
    seen = {key.removeprefix(_PREFIX): v for key, v in result.history[chosen].items() if key.startswith(_PREFIX)}
    if not seen:
        return result
    test: dict[str, float | None] = {**result.test, **{key: v for key, v in seen.items() if not key.endswith("score")}}
    if not selection:
        return replace(result, test=test)
    how = "calibrated " if selection == "observed" else "raw "
    for key in seen:
        if how in key:
            test[key.replace(how, "")] = seen[key]
    if chosen != result.chosen:
        result = replace(result, chosen=chosen, per_class_ap={}, folder=None)
    return replace(result, selection=selection, rule=_RULES[selection], test=test)


def _chosen(result: Result, selection: str) -> int:
    """The first of the best epochs of the last stage, as in training; of the rule `last` the last one."""
    if selection == "last":
        return len(result.history) - 1
    competing = [epoch for epoch in result.history if epoch["stage"] == result.history[-1]["stage"]]
    scores = [epoch.get(f"{_PREFIX}{selection} score") for epoch in competing]
    known = [score for score in scores if score is not None]
    if len(known) < len(scores):
        raise RecipeError(
            f"the run {result.key} has no score by the rule {selection!r}: it needs held-out rows, and for clean"
            " every label of them; leave that rule out of selections"
        )
    return len(result.history) - len(competing) + scores.index(max(known))
