"""`pluralis recommend`: which method suits one's own partial labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pluralis.cli_options import Format, LabelFile, Settings, Unlisted, named_data

Data = Annotated[
    str, typer.Argument(help="Folder of the images or of the data set; or a recipe (.toml) that names it.")
]


def recommend(
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder of what is tried; the same command goes on where it stopped.")],
    labels: LabelFile = "",
    format: Format = "",
    unlisted: Unlisted = "",
    minutes: Annotated[float, typer.Option(min=0, help="Time for all that is trained.")] = 30.0,
    set: Settings = None,
) -> None:
    """Train a handful of methods on your own partial labels and say which to use, and how sure that is."""
    from pluralis.config import Recipe

    recipe = Path(data) if data.endswith(".toml") else None
    plan = Recipe.load(recipe, set or [], named_data("" if recipe else data, labels, format, unlisted))

    from pluralis import recommend_page
    from pluralis.console import say, training_hooks
    from pluralis.recommend import recommend as compare
    from pluralis.recommend_words import limits, reasons, verdict

    with training_hooks("comparing", epochs_as_lines=False) as hooks:
        found = compare(plan, out, minutes, hooks)
    for line in recommend_page.lines(found):
        say(line)
    say(verdict(found.facts, found.chosen))
    for line in reasons(found.facts, found.chosen):
        say(f"  {line}")
    say("What this cannot tell:")
    for line in limits(found.facts):
        say(f"  {line}")
    page, facts = recommend_page.write(found)
    say(f"page: {page}; figures: {facts}")
    say(f"next: {found.command}")
