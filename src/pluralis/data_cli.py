"""`pluralis data`: look at labelled images, convert them, hide labels, part rows, open every file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pluralis.cli_options import Force, Format, Images, LabelFile, Unlisted
from pluralis.errors import DataError, RecipeError

if TYPE_CHECKING:  # imported inside commands: `pluralis --help` answers at once
    from pluralis.config import DataPart
    from pluralis.data.conversion import Target
    from pluralis.data.source import Source

data_app = typer.Typer(no_args_is_help=True, help="Look at labelled images, convert, hide labels, split, check.")

RecipeFile = Annotated[Path | None, typer.Option("--recipe", help="TOML file whose part `data` names the data.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="data.key=value; may be given again.")]
Out = Annotated[Path, typer.Option(help="File or folder to write.")]
To = Annotated[str, typer.Option(help="Format to write.")]
Extra = Annotated[list[str] | None, typer.Option("--option", help="key=value for the writer; may be given again.")]
_ENDINGS = {"csv": ".csv", "openimages": ".csv", "jsonl": ".jsonl", "parquet": ".parquet", "cvat": ".xml"}
_ENDINGS |= dict.fromkeys(("coco", "lvis", "labelstudio", "fiftyone"), ".json")


@data_app.command("inspect")
def inspect_command(
    images: Images = "",
    labels: LabelFile = "",
    format: Format = "",
    unlisted: Unlisted = "",
    recipe: RecipeFile = None,
    set: Settings = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots to this file.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Lines of each table.")] = 20,
    files: Annotated[bool, typer.Option(help="Look at the image files too: headers, sizes, copies.")] = True,
    force: Force = False,
) -> None:
    """Count labels by class and image, pairs that go together, copies, files that cannot be read."""
    part = _part(images, labels, format, unlisted, recipe, set)
    if html is not None:
        _refuse_existing(html, force)
    from pluralis.console import console, prediction_bar, say
    from pluralis.data.inspection import inspect_data
    from pluralis.data.inspection_tables import classes_table, files_lines, pairs_table, row_lines, unlisted_line
    from pluralis.data.source import load_source

    source = load_source(part, say)
    with prediction_bar("headers") as progress:
        found = inspect_data(source.images, source.labels, source.hints, pairs=top, look=files, progress=progress)
    for line in (*row_lines(found), unlisted_line(source.images, part)):
        if line:
            say(line)
    console.print(classes_table(found, top))
    if found.pairs:
        console.print(pairs_table(found))
    for line in files_lines(found, source.images.name, top):
        say(line)
    if html is not None:
        from pluralis.data.inspection_page import write_page

        names = (source.images.name(row) for row in range(len(source.labels)))
        write_page(html, f"Data: {part.labels or part.images or part.format}", names, source.labels, found)
        say(f"page: {html}")


@data_app.command()
def check(
    images: Images = "",
    labels: LabelFile = "",
    format: Format = "",
    unlisted: Unlisted = "",
    recipe: RecipeFile = None,
    set: Settings = None,
    out: Annotated[Path, typer.Option(help="CSV list of the images that do not open.")] = Path("quarantine.csv"),
    workers: Annotated[int, typer.Option(min=0, help="Threads; 0 is one for each core.")] = 0,
    force: Force = False,
) -> None:
    """Open every image; those that do not open are listed and the exit code is 1. Goes on where it stopped.

    Without --labels, --format and --recipe: every image in the folder.
    """
    part = _part(images, labels, format, unlisted, recipe, set)
    from pluralis.console import prediction_bar, say, stop_request
    from pluralis.data.check import check_images, is_list_of
    from pluralis.data.source import load_source, place_of

    of = place_of(part)
    if not is_list_of(out, of):
        _refuse_existing(out, force)
    folder_alone = part.images and not (labels or format or recipe or set)
    source = _pictures(Path(part.images)) if folder_alone else load_source(part, say, missing=True)
    with stop_request() as stop, prediction_bar("opening") as progress:
        found = check_images(
            source.images, source.labels, out, of=of, workers=workers, progress=progress, stop=stop.is_set
        )
    known = f", {found.noted:,} were checked before" if found.noted else ""
    say(f"{len(source.labels):,} images{known}: {len(found.bad):,} do not open: {out}")
    if found.bad:
        command = "predict" if folder_alone else "data convert"
        say(f"leave them out with `pluralis {command} … --leave-out {out}`, or replace them and check again")
        raise typer.Exit(1)


@data_app.command()
def convert(
    out: Out,
    images: Images = "",
    labels: LabelFile = "",
    format: Format = "",
    unlisted: Unlisted = "",
    recipe: RecipeFile = None,
    set: Settings = None,
    to: To = "csv",
    option: Extra = None,
    leave_out: Annotated[Path | None, typer.Option(help="CSV list of images to leave out, as `check` writes.")] = None,
    force: Force = False,
) -> None:
    """Write labels in another format; hints that it cannot hold go to a file beside it."""
    part = _part(images, labels, format, unlisted, recipe, set)
    target = _target(to, out, part, option, force)
    from pluralis.console import say
    from pluralis.data import rows
    from pluralis.data.source import load_dataset

    data = load_dataset(_with_files(part), say, missing=leave_out is not None)
    if leave_out is not None:
        from pluralis.data.check import read_list
        from pluralis.data.dataset import require_files

        before, data = len(data), rows.leave_out(data, read_list(leave_out), leave_out)
        if not len(data):
            raise DataError(f"{leave_out}: leaves out all of the {before} images; check the list, or the image folder")
        require_files(data.images)
    target.write(data, say)


@data_app.command()
def simulate(
    out: Out,
    protocol: Annotated[str, typer.Option(help="As data.protocol in a recipe, such as single-positive.")],
    images: Images = "",
    labels: LabelFile = "",
    format: Format = "",
    unlisted: Unlisted = "",
    recipe: RecipeFile = None,
    set: Settings = None,
    share: Annotated[float | None, typer.Option(help="What stays: known-ratio, drop- and flip-positives.")] = None,
    count: Annotated[int | None, typer.Option(help="What stays of each class: fixed-per-class.")] = None,
    seed: Annotated[int | None, typer.Option(help="By default the recipe's, else the protocol's own.")] = None,
    to: To = "csv",
    option: Extra = None,
    force: Force = False,
) -> None:
    """Hide or spoil labels of completely labelled data as a published protocol does, and write what is left."""
    given = {"protocol": protocol, "protocol_share": share, "protocol_count": count, "protocol_seed": seed}
    more = {f"data.{key}": value for key, value in given.items() if value is not None}
    part = _part(images, labels, format, unlisted, recipe, set, more)
    target = _target(to, out, part, option, force)
    from dataclasses import replace

    from pluralis.config import DRAWN
    from pluralis.console import say
    from pluralis.data.source import apply_protocol, load_dataset

    data = load_dataset(_with_files(part), say)
    shown = apply_protocol(data.labels, part)
    if part.protocol in DRAWN:
        say(f"drawn with the seed {part.draw_seed}")
    if data.hints is not None and len(data.hints):
        say(f"{len(data.hints):,} hints are left out: a machine may have named what the protocol hides")
    target.write(replace(data, labels=shown, hints=None), say)


@data_app.command()
def split(
    out: Annotated[Path, typer.Option(help="Folder for the label files of the two parts.")],
    images: Images = "",
    labels: LabelFile = "",
    format: Format = "",
    unlisted: Unlisted = "",
    recipe: RecipeFile = None,
    set: Settings = None,
    fraction: Annotated[float, typer.Option(min=0, max=1, help="Of the images, for validation.")] = 0.2,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 1200,
    to: To = "csv",
    option: Extra = None,
    force: Force = False,
) -> None:
    """Part the images at random, as the literature does, into label files `train` and `val`."""
    part = _part(images, labels, format, unlisted, recipe, set)
    places = [out / f"{name}{_ENDINGS.get(to, '')}" for name in ("train", "val")]
    targets = [_target(to, place, part, option, force) for place in places]
    from pluralis.console import say
    from pluralis.data import protocols, rows
    from pluralis.data.source import load_dataset

    data = load_dataset(_with_files(part), say)
    chosen = protocols.split(len(data), fraction, seed)
    if not all(map(len, chosen)):
        raise DataError(f"{fraction} of {len(data)} images leaves a part without any; give another --fraction")
    for target, numbers in zip(targets, chosen, strict=True):
        target.write(rows.select_rows(data, numbers), say)


@data_app.command()
def formats() -> None:
    """List the formats that can be read and written, with the options of each."""
    import inspect

    from rich.table import Table

    from pluralis.console import console
    from pluralis.data.formats import FORMATS

    def options(call: Any, skip: int) -> str:
        return "" if call is None else ", ".join(list(inspect.signature(call).parameters)[skip:]) or "–"

    table = Table("format", "options for reading (--set data.options.…)", "options for writing (--option …)")
    table.caption = "every format can be read with hints, a CSV file of image, label and confidence"
    for name, entry in sorted(FORMATS.items()):
        table.add_row(name, options(entry.read, 1), options(entry.write, 2) if entry.write else "is not written")
    console.print(table)


def _part(
    images: str,
    labels: str,
    format: str,
    unlisted: str,
    recipe: Path | None,
    settings: list[str] | None,
    more: dict[str, Any] | None = None,
) -> DataPart:
    from pluralis.config import Recipe

    for setting in settings or []:
        if not setting.startswith("data."):
            raise RecipeError(f"--set {setting}: only settings of the data can be given here, such as data.format=voc")
    named = {"data.images": images, "data.labels": labels, "data.format": format, "data.options.unlisted": unlisted}
    given: dict[str, Any] = {key: value for key, value in named.items() if value}
    return Recipe.load(recipe, settings or [], {**given, **(more or {})}).data


def _pictures(folder: Path) -> Source:
    """All pictures in a folder, also of kinds that do not open, without labels."""
    from pluralis.data.images import ImageFiles
    from pluralis.data.source import Source
    from pluralis.labels import Labels
    from pluralis.predictions import find_images

    files, names = find_images([folder], every=True)
    return Source(ImageFiles(files), Labels.from_lists([[]] * len(files), ["any"], ids=names))


def _with_files(part: DataPart) -> DataPart:
    if part.format == "scenes":
        raise RecipeError("format 'scenes' is made of numbers, not files: name images with --images and --labels")
    return part


def _refuse_existing(path: Path, force: bool) -> None:
    if not force:
        from pluralis.data.conversion import refuse_existing

        refuse_existing(path)


def _target(to: str, out: Path, part: DataPart, options: list[str] | None, force: bool) -> Target:
    """Where to write, before any work: nothing is there, or it may be written over."""
    from pluralis.data.conversion import Target

    target = Target.parse(to, out, part.images, options or [], force)
    target.refuse_existing()
    return target
