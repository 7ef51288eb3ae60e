"""`pluralis relabel` and `pluralis count`: what a finished run says about labels that nobody wrote down."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from pluralis import Recipe, load_run, train
from pluralis.calibration import calibrate
from pluralis.checkpoint import Store, read_snapshot
from pluralis.cli import app
from pluralis.data.scenes import make_scenes
from pluralis.errors import CheckpointError, DataError, Interrupted, PluralisError, RecipeError
from pluralis.labels import Labels
from pluralis.losses import selection_posterior
from pluralis.missing_labels import Part, count_missing, doubts, how_written, look, own_rows, together
from pluralis.run import Hooks

FAST = [
    "model.backbone=tiny", "model.weights=", "data.size=24", "train.epochs=1", "train.batch_size=8", "run.device=cpu",
    "run.workers=0",
]  # fmt: skip
RELABEL = ["method.name=relabel", "model.head=linear", "method.params.views=fast", "train.lr=1e-2"]
OF_LOSS = "method.params.loss_params"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 pictures, each with one of its labels written down, and one label known to be absent."""
    folder = tmp_path_factory.mktemp("photos")
    scenes = make_scenes("train", 20)
    lines = ["image,label,value"]
    for row, pixels in enumerate(scenes.images):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / f"{row:02d}.png")
        lines.append(f"{row:02d}.png,digit {(scenes.truth[row] > 0).argmax()},1")
    lines.append(f"00.png,digit {(scenes.truth[0] > 0).argmin()},-1")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def make_run(photos: Path, out: Path, *settings: str) -> Path:
    values = {"data.images": str(photos), "data.labels": str(photos / "labels.csv")}
    train(Recipe.load(None, [*FAST, *settings], values), out)
    return out


@pytest.fixture(scope="module")
def runs(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    rate = 'method.params={mechanism="rate"}'
    return {
        "an": make_run(photos, folder / "an", "method.name=an"),
        "selection": make_run(photos, folder / "selection", "method.name=selection"),
        "rate": make_run(photos, folder / "rate", "method.name=selection", rate, "select.rule=last"),
        "relabel": make_run(photos, folder / "relabel", *RELABEL, f"{OF_LOSS}.mechanism=rate", f"{OF_LOSS}.rate=class"),
        "relabel an": make_run(photos, folder / "relabel an", *RELABEL, "method.params.loss=an"),
        "a": make_run(photos, folder / "a", "method.name=selection", "method.params.a=3.0"),
        "absent": make_run(photos, folder / "absent", *RELABEL, f"{OF_LOSS}.unlabelled=absent"),
    }


def pluralis(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "160"})
    if done.exception is not None:
        raise done.exception
    return done.output


def lines(path: Path) -> list[list[str]]:
    return list(csv.reader(path.open(encoding="utf-8")))


@pytest.mark.parametrize("name", ["an", "selection", "a", "rate", "relabel", "relabel an"])
def test_every_unknown_label_with_its_chance_given_what_was_written(
    name: str, photos: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "missing.csv"
    said = pluralis("relabel", runs[name], "--out", out, "--min-probability", 0)
    header, *rows = lines(out)
    assert header == ["image", "label", "probability"]
    trained = load_run(runs[name])
    known = {(image, label) for image, label, _ in lines(photos / "labels.csv")[1:]}
    found = {(image, label): float(p) for image, label, p in rows}
    assert len(found) == len(rows) == 20 * len(trained.classes) - len(known)
    assert not known & found.keys()
    chances = [float(p) for _, _, p in rows]
    assert chances == sorted(chances, reverse=True)

    # by hand, for the rows that were trained on
    source = own_rows(trained, runs[name])[0]
    logits, given = look(trained, source).logits.double(), torch.from_numpy(source.labels.dense())
    if name == "an":
        assert "calibrated" in said
        expected = selection_posterior(trained.calibration.a * logits + trained.calibration.b, given)
    elif name in ("selection", "a", "relabel an"):
        assert "the run's own probabilities (those of `predict` are calibrated" in said
        assert (trained.calibration.a, trained.calibration.b) != (1, 0)
        expected = selection_posterior(logits, given, a=3.0 if name == "a" else 1.0)
    else:
        rate = how_written(trained.method)["rate"].double()
        assert rate.mean().item() == pytest.approx(trained.history[-1]["rate"])
        assert rate.sub(0.5).abs().min() > 1e-3
        p = logits.sigmoid()
        expected = p * (1 - rate) / (1 - rate * p)
    for row, image in enumerate(source.labels.ids):
        for column, label in enumerate(trained.classes):
            if given[row, column] == 0:
                assert found[image, label] == pytest.approx(expected[row, column].item(), abs=2e-5)


def test_only_the_likely_ones_and_a_wide_table(photos: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    pluralis("relabel", runs["selection"], "--out", tmp_path / "all.csv", "--min-probability", 0)
    chances = [float(p) for _, _, p in lines(tmp_path / "all.csv")[1:]]
    middle = (chances[30] + chances[31]) / 2
    said = pluralis("relabel", runs["selection"], "--out", tmp_path / "some.csv", "--min-probability", middle)
    assert lines(tmp_path / "some.csv") == lines(tmp_path / "all.csv")[:32]
    assert "31 of" in said
    wide = ["--min-probability", middle, "--layout", "wide"]
    pluralis("relabel", runs["selection"], "--out", tmp_path / "wide.csv", *wide)
    header, *rows = lines(tmp_path / "wide.csv")
    cells = {(row[0], label): cell for row in rows for label, cell in zip(header[1:], row[1:], strict=True) if cell}
    for image, label, value in lines(photos / "labels.csv")[1:]:
        assert cells.pop((image, label)) == value
    assert {key: float(cell) for key, cell in cells.items()} == {
        (image, label): pytest.approx(float(p), abs=1e-6) for image, label, p in lines(tmp_path / "some.csv")[1:]
    }


def test_other_data_with_the_labels_that_it_has(photos: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("image,label\n03.png,digit 1\n04.png,\n")
    named = ["--images", photos, "--labels", tmp_path / "two.csv", "--min-probability", 0]
    pluralis("relabel", runs["an"], "--out", tmp_path / "a/b.csv", *named)  # the folder is made
    found = defaultdict(set)
    for image, label, _ in lines(tmp_path / "a/b.csv")[1:]:
        found[image].add(label)
    classes = set(load_run(runs["an"]).classes)
    assert found == {"03.png": classes - {"digit 1"}, "04.png": classes}


def test_a_file_that_is_there_stays_unless_forced(runs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "labels.csv"
    out.write_text("precious")
    for command in ("relabel", "count"):
        with pytest.raises(RecipeError, match="--force"):
            pluralis(command, runs["an"], "--out", out)
        assert out.read_text() == "precious"
    with pytest.raises(RecipeError, match=".csv"):
        pluralis("relabel", runs["an"], "--out", tmp_path / "labels.txt")
    pluralis("relabel", runs["an"], "--out", out, "--force")
    assert lines(out)[0] == ["image", "label", "probability"]
    page = tmp_path / "page.html"
    page.write_text("precious")
    with pytest.raises(RecipeError, match=r"page\.html is there already: name another file with --html, .*--force"):
        pluralis("relabel", runs["an"], "--out", tmp_path / "new.csv", "--html", page)
    assert page.read_text() == "precious"
    assert not (tmp_path / "new.csv").exists()
    with pytest.raises(RecipeError, match=r"--html is .*new\.csv; its name must end with \.html"):
        pluralis("relabel", runs["an"], "--html", tmp_path / "new.csv")
    pluralis("relabel", runs["an"], "--html", page, "--force")
    assert page.read_text().startswith("<!doctype html>")


def shown(page: Path) -> set[tuple[str, str, str]]:
    """Image, label and chance of every picture on a page."""
    found = set()
    for section in page.read_text().split("<section")[1:]:
        label = section.partition("<h2>")[2].partition(":")[0]
        for card in section.split("<figure>")[1:]:
            chance, image = re.findall(r"<figcaption><b>(.*?)</b> (.*?)<br>", card)[0]
            assert card.startswith('<img src="data:image/jpeg;base64,')
            found.add((image, label, chance))
    return found


def test_a_page_shows_what_the_file_lists(runs: dict[str, Path], tmp_path: Path) -> None:
    for number, words in enumerate((["selection"], ["relabel an", "--learned"])):
        out, page = tmp_path / f"{number}.csv", tmp_path / f"{number}.html"
        words = [runs[words[0]], *words[1:], "--min-probability", 0.3]
        said = pluralis("relabel", *words, "--out", out, "--html", page)
        listed = {(image, label, f"{float(chance):.3f}") for image, label, chance in lines(out)[1:]}
        assert shown(page) == listed
        assert len(listed) > 5
        assert f"{len(listed)} of" in said
        assert said.rstrip().endswith(f": {out} and {page}")
        assert f"{len(listed)} of" in page.read_text()
        assert pluralis("relabel", *words, "--html", tmp_path / f"{number} alone.html").count(f"{len(listed)} of") == 1
        assert (tmp_path / f"{number} alone.html").read_text() == page.read_text()


def test_a_page_of_the_embedded_data(tmp_path: Path) -> None:
    values = {
        "data.format": "scenes",
        "data.options": {"split": "train", "count": 24},
        "data.protocol": "single-positive",
    }
    train(Recipe.load(None, [*FAST, "method.name=selection"], values), tmp_path / "run")
    pluralis("relabel", tmp_path / "run", "--html", tmp_path / "page.html", "--min-probability", 0)
    assert len(shown(tmp_path / "page.html")) == 24 * 9


def test_what_was_right_is_learned_in_a_new_folder(photos: Path, tmp_path: Path) -> None:
    labels, out = tmp_path / "labels.csv", tmp_path / "missing.csv"
    labels.write_text((photos / "labels.csv").read_text())
    values = {"data.images": str(photos), "data.labels": str(labels)}
    recipe = Recipe.load(None, [*FAST, "method.name=an"], values)
    classes = train(recipe, tmp_path / "run").classes
    pluralis("relabel", tmp_path / "run", "--out", out, "--min-probability", 0)
    hints = ["--images", photos, "--labels", labels, "--set", f"data.options.hints={out}", "--no-files"]
    said = pluralis("data", "inspect", *hints)
    assert f"hints of a machine, not labels: {len(lines(out)) - 1:,} for 20 images" in said
    image, label, _ = lines(out)[1]
    for line, words in (
        (f"{image},{label},1", "the labels or images changed .* or name a new folder with --out"),
        (
            f"{image},a thing,1",
            rf"has {len(classes) + 1} classes.*extra a thing\): name a new folder with --out, or put",
        ),
    ):
        labels.write_text((photos / "labels.csv").read_text() + f"{line}\n")
        with pytest.raises(PluralisError, match=words):
            train(recipe, tmp_path / "run")
    assert train(recipe, tmp_path / "run2").classes == tuple(sorted((*classes, "a thing")))
    with pytest.raises(DataError, match=r"extra a thing\): put the labels back .*run was trained, or name the data"):
        pluralis("relabel", tmp_path / "run", "--out", out, "--force")


def test_what_is_wrong_is_said(photos: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    out = ["--out", tmp_path / "x.csv"]
    for words, part in (
        ([tmp_path / "nowhere", *out], "no finished run"),
        ([runs["an"], *out, "--layout", "tall"], "long, wide"),
        ([runs["an"], *out, "--views", "slow"], "slow"),
        ([runs["an"], *out, "--set", "train.lr=1"], "train.lr"),
        ([runs["an"]], "--out FILE.csv, --html PAGE.html, or both"),
    ):
        with pytest.raises(PluralisError, match=part):
            pluralis("relabel", *words)
    assert not list(tmp_path.iterdir())


def test_changed_labels_are_noticed(photos: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text((photos / "labels.csv").read_text())
    values = {"data.images": str(photos), "data.labels": str(labels)}
    train(Recipe.load(None, [*FAST, "method.name=an"], values), tmp_path / "run")
    labels.write_text(labels.read_text() + "05.png,digit 0,-1\n")
    named = ["--images", photos, "--labels", labels]
    for command, more, instead in (
        ("relabel", [], "name the data as it is now with --images and --labels"),
        ("relabel", ["--learned"], "train again with a new --out"),
        ("count", [], "train again with a new --out"),
        ("count", named, "train again with a new --out"),  # it is calibrated on rows that the run held out
    ):
        with pytest.raises(DataError, match=f"changed since.*: put them back, or {instead}$"):
            pluralis(command, tmp_path / "run", "--out", tmp_path / "x.csv", *more)
    assert "unknown labels" in pluralis("relabel", tmp_path / "run", "--out", tmp_path / "x.csv", *named)


@pytest.mark.parametrize("name", ["an", "rate", "relabel"])
def test_count_prints_a_table_and_when_it_is_biased(
    name: str, photos: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    said = pluralis("count", runs[name], "--out", tmp_path / "counts.csv")
    header, *rows = lines(tmp_path / "counts.csv")
    assert header == ["label", "written", "expected", "missing", "missing from", "missing to"]
    assert [row[0] for row in rows] == [*load_run(runs[name]).classes, "all"]
    written = [label for _, label, value in lines(photos / "labels.csv")[1:] if value == "1"]
    assert [int(row[1]) for row in rows] == [*(written.count(row[0]) for row in rows[:-1]), 20]
    for row in rows:
        expected, missing, low, high = map(float, row[2:])
        assert expected - missing == pytest.approx(int(row[1]), abs=2e-3)
        assert 0 <= low <= missing + 1e-3 <= high + 2e-3
    assert "20 images" in said
    assert ("picked at random" in said) == (name == "an")
    assert ("with the chance of its class" in said) == (name == "relabel")
    assert ("Nothing was calibrated" in said) == (name == "relabel")
    if name == "an":
        assert said.index("rests on 4 rows") < said.index("20 images") < said.index("picked at random")
    elif name == "rate":  # one for all classes is fitted to the held-out rows
        assert said.index("rests on 4 rows") < said.index("20 images") < said.index("as fitted to held-out rows")
        assert "present labels were written with one chance" in " ".join(said.split())  # some are verified absent
    else:
        last = load_run(runs[name]).history[-1]
        assert f"(its own error: {last['rate error']:.2g})" in " ".join(said.split())
    assert f"{float(rows[-1][2]):,.1f}" in said


def test_what_held_out_rows_say_against_the_chances_is_said(runs: dict[str, Path], tmp_path: Path) -> None:
    said = {name: pluralis("relabel", runs[name], "--out", tmp_path / f"{name}.csv") for name in ("an", "selection")}
    assert "warning: The calibration rests on 4 rows only" in said["an"]
    assert "rests on" not in said["selection"]  # its own probabilities are listed as they are


def test_a_model_no_better_than_frequencies_is_doubted(runs: dict[str, Path]) -> None:
    """As the run found at its end, by the rows that it held out."""
    trained = replace(load_run(runs["selection"]), weak=False)
    _, kept = own_rows(trained, runs["selection"])
    assert kept is not None
    for weak in (True, False):
        found = doubts(replace(trained, weak=weak), kept.labels)
        assert [line.startswith("On held-out rows the model is hardly better") for line in found] == [True] * weak
    assert not doubts(replace(trained, weak=True, rule="last epoch"), kept.labels)
    assert not doubts(replace(trained, weak=True), None)


def test_a_class_that_is_expected_everywhere_and_seldom_written_is_told_of(photos: Path, tmp_path: Path) -> None:
    """By a network that has seen it in every image, asked about labels in which nobody wrote it."""
    (tmp_path / "every.csv").write_text(
        "\n".join([(photos / "labels.csv").read_text(), *(f"{row:02d}.png,sky,1" for row in range(20))])
    )
    run = make_run(
        photos,
        tmp_path / "run",
        "method.name=bce",
        "select.rule=last",
        "select.fraction=0",
        f"data.labels={tmp_path / 'every.csv'}",
    )
    own = ["--images", photos, "--labels", photos / "labels.csv"]
    for words, told in (([], False), (own, True)):
        for command in (["count"], ["relabel", "--force", "--out", tmp_path / "missing.csv"]):
            said = " ".join(pluralis(command[0], run, *command[1:], *words).split())
            assert ("is expected in nearly every image, and written in few: sky." in said) == told


def test_count_goes_by_the_rows_that_are_named(photos: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("image,label\n03.png,digit 1\n04.png,\n")
    named = ["--images", photos, "--labels", tmp_path / "two.csv", "--unlabelled", "absent"]
    said = pluralis("count", runs["selection"], "--out", tmp_path / "counts.csv", *named)
    assert "2 images" in said
    assert lines(tmp_path / "counts.csv")[-1][1] == "1"


def test_images_in_which_somebody_looked_and_found_nothing(photos: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("image,label\n03.png,digit 1\n04.png,\n")
    named = ["--images", photos, "--labels", tmp_path / "two.csv"]
    pluralis("relabel", runs["absent"], "--out", tmp_path / "all.csv", *named, "--min-probability", 0)
    chances = defaultdict(list)
    for image, _, chance in lines(tmp_path / "all.csv")[1:]:
        chances[image].append(float(chance))
    assert len(chances["03.png"]) == len(chances["04.png"]) - 1
    assert min(chances["03.png"]) > 0 == max(chances["04.png"])
    pluralis("count", runs["absent"], "--out", tmp_path / "counts.csv", *named)
    pluralis("count", runs["absent"], "--out", tmp_path / "more.csv", *named, "--unlabelled", "skip")
    counted, more = (float(lines(tmp_path / name)[-1][2]) for name in ("counts.csv", "more.csv"))
    assert 1 < counted < more


def test_how_labels_are_written_comes_from_the_method(runs: dict[str, Path]) -> None:
    assert how_written(load_run(runs["an"]).method) == {}
    assert how_written(load_run(runs["selection"]).method)["mechanism"] == "one"
    trained = load_run(runs["rate"])
    assert how_written(trained.method)["rate"].item() == pytest.approx(trained.history[-1]["rate"])
    assert trained.history[-1]["rate error"] > 0


def test_count_knows_how_the_method_picks(runs: dict[str, Path], tmp_path: Path) -> None:
    said = pluralis("count", runs["a"], "--out", tmp_path / "counts.csv")
    trained = load_run(runs["a"])
    part = together([look(trained, source) for source in own_rows(trained, runs["a"]) if source])
    expected = selection_posterior(part.logits.double(), part.labels, a=3.0).sum().item()
    assert float(lines(tmp_path / "counts.csv")[-1][2]) == pytest.approx(expected, abs=1e-3)
    assert "a = 3" in said


@pytest.mark.parametrize("name", ["an", "selection", "a", "rate", "relabel", "given"])
def test_count_goes_by_two_rates_as_the_calibration_does(name: str, photos: Path, runs: dict[str, Path]) -> None:
    """Whatever the method says of how labels are written, unless it was given a rate."""
    given = [] if name != "given" else ["method.name=selection", 'method.params={mechanism="rate", rate=0.5}']
    trained = load_run(make_run(photos, runs["an"].parent / "given", *given) if given else runs[name])
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(60, len(trained.classes), generator=draw).mul(2).sub(1)
    present = torch.rand(logits.shape, generator=draw) < logits.sigmoid()
    known = torch.rand(logits.shape, generator=draw) < 0.5
    dense = torch.where(present, 1, -1) * known
    part = Part(Labels.from_dense(dense.numpy().astype("int8"), trained.classes), logits)
    counts = count_missing(trained, part, part, draws=20)
    if name == "given":
        assert counts.calibration.rates is None
        assert counts.rate == 0.5
        return
    scale, _ = calibrate(logits, dense)
    assert counts.calibration == scale
    assert scale.rates is not None
    assert counts.rate is None
    assert counts.total.expected == pytest.approx(scale.chances(logits, dense).sum().item(), rel=1e-5)
    assert count_missing(trained, part, None, draws=20).calibration.rates is None


@pytest.mark.parametrize("name", ["relabel", "relabel an"])
def test_what_the_last_stage_learned_can_be_seen(name: str, runs: dict[str, Path], tmp_path: Path) -> None:
    said = pluralis("relabel", runs[name], "--learned", "--out", tmp_path / "soft.csv", "--min-probability", 0)
    found = {(image, label): float(chance) for image, label, chance in lines(tmp_path / "soft.csv")[1:]}
    trained = load_run(runs[name])
    source, held = own_rows(trained, runs[name])
    assert held is not None
    learned = Store(runs[name] / "checkpoints").load()
    assert learned is not None
    soft, given = learned.tensors["method/soft.value"], source.labels.dense()
    assert len(found) == (given == 0).sum()
    for row, image in enumerate(source.labels.ids):
        for column, label in enumerate(trained.classes):
            if given[row, column] == 0:
                assert found[image, label] == pytest.approx(soft[row, column].item(), abs=1e-6)
    assert not {image for image, _ in found} & set(held.labels.ids)
    assert f"{len(found)} of {len(found)} unknown labels" in " ".join(said.split())
    pluralis("relabel", runs[name], "--out", tmp_path / "last.csv", "--min-probability", 0)
    last = {(image, label): float(chance) for image, label, chance in lines(tmp_path / "last.csv")[1:]}
    assert any(abs(last[key] - chance) > 1e-3 for key, chance in found.items())  # the student says something else
    assert "soft.value" not in read_snapshot(runs[name] / "model").tensors


def test_what_was_learned_is_the_same_after_a_stop(photos: Path, runs: dict[str, Path], tmp_path: Path) -> None:
    stops = iter([False] * 3 + [True])  # in the second stage
    settings = [*FAST, *RELABEL, "method.params.loss=an"]
    values = {"data.images": str(photos), "data.labels": str(photos / "labels.csv")}
    recipe = Recipe.load(None, settings, values)
    with pytest.raises(Interrupted, match="stage 2"):
        train(recipe, tmp_path / "run", Hooks(should_stop=lambda: next(stops)))
    with pytest.raises(CheckpointError, match="no finished run"):
        pluralis("relabel", tmp_path / "run", "--learned", "--out", tmp_path / "x.csv")
    train(recipe, tmp_path / "run")
    once, twice = (read_snapshot(folder / "soft_labels") for folder in (runs["relabel an"], tmp_path / "run"))
    assert torch.equal(once.tensors["chance"], twice.tensors["chance"])


def test_what_was_not_learned_is_said(runs: dict[str, Path], photos: Path, tmp_path: Path) -> None:
    out = ["--out", tmp_path / "x.csv", "--learned"]
    with pytest.raises(CheckpointError, match="only runs of the method relabel"):
        pluralis("relabel", runs["an"], *out)
    for words in (["--views", "standard"], ["--images", photos], ["--set", "data.unlabelled=keep"]):
        with pytest.raises(RecipeError, match="--learned is about the rows trained on"):
            pluralis("relabel", runs["relabel"], *out, *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "kind"), [("an", "probabilities calibrated"), ("rate", "probabilities not calibrated")]
)
def test_predict_says_which_probabilities_it_gives(
    name: str, kind: str, photos: Path, runs: dict[str, Path], tmp_path: Path
) -> None:
    said = pluralis("predict", runs[name], photos / "03.png", "--out", tmp_path / "found.csv")
    assert kind in " ".join(said.split())
