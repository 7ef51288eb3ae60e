"""`pluralis relabel` and `pluralis count`: which labels are missing, and how many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pluralis.cli_options import Device, Force, Format, Images, LabelFile, Settings, ViewsOption, named_data, views_line


def relabel(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write: image,label,probability, the most likely first.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Page to write: the images, by class, to look at in a browser.")
    ] = None,
    images: Images = "",
    labels: LabelFile = "",
    format: Format = "",
    min_probability: Annotated[
        float, typer.Option(min=0, max=1, help="Least chance of a label; 0 lists every unknown one.")
    ] = 0.5,
    layout: Annotated[str, typer.Option(help="Of --out: long, or wide, a label file to fill in.")] = "long",
    learned: Annotated[bool, typer.Option("--learned", help="What the last stage of a `relabel` run learned.")] = False,
    force: Force = False,
    views: ViewsOption = "fast",
    device: Device = "auto",
    set: Settings = None,
) -> None:
    """Labels that are probably missing, each with its chance given what was written (by default in the run's data)."""
    from pluralis import missing_labels as missing
    from pluralis.console import prediction_bar, say
    from pluralis.errors import RecipeError
    from pluralis.missing_file import LAYOUTS, in_words, write_missing
    from pluralis.missing_page import write_page
    from pluralis.params import choice
    from pluralis.trained_run import load_run
    from pluralis.views import get_views

    get_views(views)  # what is wrong shows before any work
    choice("relabel", "--layout", layout, LAYOUTS)
    if out is None and html is None:
        raise RecipeError("name what to write: --out FILE.csv, --html PAGE.html, or both")
    if out is not None:
        missing.check_file(out, force)
    if html is not None:
        missing.check_file(html, force, "--html", ".html")
    named = named_data(images, labels, format)
    if learned:
        missing.check_learned(views, bool(named or set))
    trained = load_run(run, device)
    if learned:
        own, found = missing.learned(trained, run)
        sources, rows = [own], own.labels
        how = "in what the last stage learned of the rows that it was trained on, from the stage before"
    else:
        if named or set:
            sources = [missing.named_rows(trained, named, set or [])]
        else:
            both = missing.own_rows(trained, run, "name the data as it is now with --images and --labels")
            sources = [source for source in both if source]
        say(views_line(trained, views, calibrated=not missing.by_own_probabilities(trained, views)))
        with prediction_bar() as progress:
            part = missing.together([missing.look(trained, source, views, progress) for source in sources])
        rows, (found, how) = part.labels, missing.chances(trained, part, views)
        held = sources[1].labels if sources[1:] else None  # of named rows none is known to be held out
        for line in missing.doubts(trained, held, views):
            say(f"warning: {line}")
    for line in missing.too_likely(rows, found):
        say(f"warning: {line}")
    count = 0
    if out is not None:
        count = write_missing(out, rows, found, min_probability, layout)
    if html is not None:
        pictures = [source.images for source in sources]
        with prediction_bar("pictures") as progress:
            count = write_page(html, f"Labels missing in {run}", pictures, rows, found, min_probability, how, progress)
    files = " and ".join(str(path) for path in (out, html) if path is not None)
    say(f"{in_words(count, rows, min_probability, how)}: {files}")


def count(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    out: Annotated[Path | None, typer.Option(help="Write the table to this CSV file too.")] = None,
    images: Images = "",
    labels: LabelFile = "",
    format: Format = "",
    unlabelled: Annotated[str, typer.Option(help="Images without a label: skip (nobody looked) or absent.")] = "",
    draws: Annotated[int, typer.Option(min=2, help="Of the calibration and of chance, for the intervals.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the draws.")] = 0,
    force: Force = False,
    views: ViewsOption = "fast",
    device: Device = "auto",
    set: Settings = None,
) -> None:
    """How many labels there are and how many are missing, by class, with 95 % intervals; no clean label is needed."""
    from pluralis import missing_labels as missing
    from pluralis.console import console, counts_table, prediction_bar, say
    from pluralis.trained_run import load_run
    from pluralis.views import get_views

    get_views(views)
    if out is not None:
        missing.check_file(out, force)
    trained = load_run(run, device)
    named = named_data(images, labels, format)
    given = missing.named_rows(trained, named, set or []) if named or set else None
    learned, kept = missing.own_rows(trained, run)
    say(f"views {views}: {get_views(views).cost()}")
    with prediction_bar() as progress:
        held = missing.look(trained, kept, views, progress) if kept else None
        part = missing.look(trained, given or learned, views, progress)
    if held is not None and given is None:
        part = missing.together([part, held])
    options = {"unlabelled": unlabelled} if unlabelled else {}
    counts = missing.count_missing(trained, part, held, draws=draws, seed=seed, **options)
    for line in counts.warnings():
        say(f"warning: {line}")
    console.print(counts_table(counts))
    for line in counts.caveats():
        say(f"note: {line}")
    if out is not None:
        missing.write_counts(out, counts)
        say(f"table: {out}")
