"""Options that several commands share, and what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Out = Annotated[Path, typer.Option(help="Folder of the run; the same command goes on where it stopped.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value over the recipe; may be given again.")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Images = Annotated[str, typer.Option(help="Folder of the images, or of the data set.")]
LabelFile = Annotated[str, typer.Option(help="Label file, or the folder of the label files.")]
ViewsOption = Annotated[
    str,
    typer.Option(
        "--views",
        help="fast (one look at an image), standard (two sizes and their mirror images) or thorough (and nine crops).",
    ),
]
Format = Annotated[str, typer.Option(help="csv by default; `pluralis data formats` lists them.")]
Unlisted = Annotated[str, typer.Option(help="What a label that is not listed means: unknown or absent.")]
Force = Annotated[bool, typer.Option("--force", help="Write over what is there.")]


def named_data(images: str, labels: str, format: str, unlisted: str = "") -> dict[str, str]:
    named = {"data.images": images, "data.labels": labels, "data.format": format, "data.options.unlisted": unlisted}
    return {key: value for key, value in named.items() if value}


def views_line(trained: Any, views: str, calibrated: bool = True) -> str:
    """What the views cost, and whether probabilities, if they are `calibrated` ones, were so with these views."""
    from pluralis.views import get_views

    known = views == "fast" or views in trained.calibrations or not trained.rule.startswith("observed")
    known = known or not calibrated
    note = "" if known else "; calibrated with one view only, so probabilities may be off"
    return f"views {views}: {get_views(views).cost()}{note}"
