"""Where specs and recipes are found: beside the file that names them, where one stands, or with the package."""

from __future__ import annotations

from pathlib import Path

import pluralis
from pluralis.errors import RecipeError


def recipes_folder() -> Path:
    """The recipes that come with the package; in a check-out those of the repository."""
    inside = Path(pluralis.__file__).parent / "recipes"
    return inside if inside.is_dir() else Path(pluralis.__file__).parents[2] / "recipes"


def find(name: str, beside: Path, what: str) -> Path:
    """The first of: the path beside a folder, the path from here, the path in the recipes of the package."""
    packaged = recipes_folder()
    short = name.removeprefix("recipes/")
    places = [beside / name, Path(name), packaged / short]
    for place in places:
        if place.is_file():
            return place
    shown = ", ".join(dict.fromkeys(map(str, (places[0], places[1], places[2]))))
    raise RecipeError(f"{what} {name!r} is not there: looked for {shown}")
