"""The command line as a person uses it: whole commands, their output, their exit codes."""

from __future__ import annotations

import csv
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from pluralis.checkpoint import read_snapshot, state_hash
from pluralis.data.scenes import make_scenes
from pluralis.trained_run import load_run
from tests.children import pluralis

COLOURS = ["red", "lime", "blue", "white"]
FAST = ["model.backbone=tiny", "model.weights=", "data.size=24", "train.epochs=2", "train.batch_size=8"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 pictures, each with one of its labels written down."""
    folder = tmp_path_factory.mktemp("photos")
    scenes = make_scenes("train", 24)
    lines = ["image,label"]
    for row, pixels in enumerate(scenes.images):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / f"{row:02d}.png")
        lines.append(f"{row:02d}.png,digit {(scenes.truth[row] > 0).argmax()}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


def train_words(photos: Path, out: Path, *settings: str) -> list[object]:
    words = [w for setting in [*FAST, *settings] for w in ("--set", setting)]
    return ["train", "--images", photos, "--labels", photos / "labels.csv", "--out", out, *words]


def failed(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """One clear line on stderr that holds the parts, and exit code 2."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    for part in parts:
        assert part in lines[0], lines[0]


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    done = pluralis(*train_words(photos, out))
    assert done.returncode == 0, done.stderr
    assert "rule: observed" in done.stdout
    assert "starting bias: equal" in done.stdout
    return out


def test_a_mistake_in_parameters_is_told_before_what_was_chosen(photos: Path, tmp_path: Path) -> None:
    done = pluralis(*train_words(photos, tmp_path / "run", "method.name=relabel", "method.params.student=foo"))
    failed(done, "student is 'foo'")
    assert "freeze_bn" not in done.stdout
    assert "relabelling looks" not in done.stdout


@pytest.mark.parametrize("told", [True, False], ids=["grey", "coloured"])
def test_a_model_that_hardly_tells_images_apart_is_told_of(told: bool, tmp_path: Path) -> None:
    """At the end of training, and wherever its labels are predicted; pictures of one grey cannot be told apart."""
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    rows = ["image,label"]
    for number in range(80):
        label = number * 7 % 4
        Image.new("RGB", (24, 24), "grey" if told else COLOURS[label]).save(pictures / f"{number}.png")
        rows.append(f"{number}.png,{'abcd'[label]}")
    (pictures / "labels.csv").write_text("\n".join(rows) + "\n")
    longer = ["train.epochs=10", "train.lr=0.01", "method.name=selection"]
    done = pluralis(*train_words(pictures, tmp_path / "run", *longer))
    assert done.returncode == 0, done.stderr
    weak = "warning: On held-out rows the model is hardly better than the frequencies of the classes"
    assert (weak in " ".join(done.stdout.split())) == told
    assert load_run(tmp_path / "run").weak == told
    done = pluralis("predict", tmp_path / "run", pictures, "--out", tmp_path / "found.csv")
    assert done.returncode == 0, done.stderr
    assert (weak in " ".join(done.stdout.split())) == told


def test_nobody_judges_a_model_whose_rule_is_the_last_epoch(photos: Path, tmp_path: Path) -> None:
    done = pluralis(*train_words(photos, tmp_path / "run", "select.rule=last"))
    assert done.returncode == 0, done.stderr
    assert "hardly better" not in done.stdout
    assert not load_run(tmp_path / "run").weak


def test_train_says_when_it_is_finished(photos: Path, trained: Path) -> None:
    before = state_hash(read_snapshot(trained / "model").tensors)
    done = pluralis(*train_words(photos, trained))
    assert done.returncode == 0
    assert "finished" in done.stdout
    assert "starting bias: equal" in done.stdout  # as when it was trained
    assert state_hash(read_snapshot(trained / "model").tensors) == before


def test_train_refuses_another_recipe_and_names_the_change(photos: Path, trained: Path) -> None:
    failed(pluralis(*train_words(photos, trained, "train.lr=0.5")), "train.lr: 0.0001 -> 0.5", "--out")


def test_train_refuses_a_folder_with_other_things(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    failed(pluralis(*train_words(photos, tmp_path)), "not empty", "--out")
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_a_mistake_does_not_spoil_the_folder(photos: Path, tmp_path: Path) -> None:
    words = train_words(photos, tmp_path / "run")
    failed(pluralis(*words, "--method", "grr"), "'gr'")
    failed(pluralis(*words, "--set", "train.freeze=99"), "99")
    assert pluralis(*words).returncode == 0


def test_changed_labels_are_noticed(photos: Path, tmp_path: Path) -> None:
    """A run that was stopped does not go on with other labels or other classes."""
    lines = (photos / "labels.csv").read_text().splitlines()
    labels = tmp_path / "labels.csv"
    labels.write_text("\n".join(lines))
    words = ["train", "--images", photos, "--labels", labels, "--out", tmp_path / "run"]
    words += [w for setting in FAST for w in ("--set", setting)]
    assert pluralis(*words).returncode == 0
    for path in (tmp_path / "run").glob("model.*"):
        path.unlink()
    labels.write_text("\n".join([*lines, "00.png,digit 99"]))
    failed(pluralis(*words), "classes", "digit 99")
    first = next(line for line in lines if line.startswith("00"))
    other = next(line for line in lines[1:] if line.split(",")[1] != first.split(",")[1])
    labels.write_text("\n".join(lines).replace(first, f"00.png,{other.split(',')[1]}"))
    failed(pluralis(*words), "changed", "--out")


def test_evaluate(photos: Path, trained: Path) -> None:
    words = ["evaluate", trained, "--images", photos, "--labels", photos / "labels.csv"]
    failed(pluralis(*words), "-1", "--unlisted absent")  # positives alone say nothing about precision
    failed(pluralis("evaluate", trained), "--images")  # there is no test set in its recipe
    failed(pluralis(*words, "--set", "train.lr=1"), "train.lr")
    words += ["--set", "data.options.unlisted=absent"]
    done = pluralis(*words, "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert {"mAP", "CF1", "OF1", "rule"} <= figures.keys()
    assert f"{figures['mAP']:.2f}" in pluralis(*words).stdout


def test_evaluate_keeps_to_the_test_split_when_the_data_moved(photos: Path, tmp_path: Path) -> None:
    base = tmp_path / "VOC2012"
    (base / "ImageSets" / "Main").mkdir(parents=True)
    (base / "JPEGImages").mkdir()
    names = [f"2008_{row:06d}" for row in range(24)]
    for row, name in enumerate(names):
        Image.open(photos / f"{row:02d}.png").save(base / "JPEGImages" / f"{name}.jpg", quality=95)
    for split, rows in (("train", range(16)), ("val", range(16, 24))):
        for number, kind in enumerate(("cat", "dog")):
            lines = (f"{names[row]} {1 if row % 2 == number else -1:2d}\n" for row in rows)
            (base / "ImageSets" / "Main" / f"{kind}_{split}.txt").write_text("".join(lines))
        (base / "ImageSets" / "Main" / f"{split}.txt").write_text("".join(f"{names[row]}\n" for row in rows))
    words = [w for setting in [*FAST, "data.test.options.split=val"] for w in ("--set", setting)]
    done = pluralis("train", "--format", "voc", "--images", base, "--out", tmp_path / "run", *words)
    assert done.returncode == 0, done.stderr
    base.rename(tmp_path / "moved")
    found = json.loads(pluralis("evaluate", tmp_path / "run", "--images", tmp_path / "moved", "--json").stdout)
    expected = read_snapshot(tmp_path / "run" / "model").meta["test"]
    assert found["mAP"] == pytest.approx(expected["mAP"])
    other = ["--set", "data.options.split=train", "--json"]
    training = json.loads(pluralis("evaluate", tmp_path / "run", "--images", tmp_path / "moved", *other).stdout)
    assert training["mAP"] != pytest.approx(expected["mAP"])


def test_evaluate_refuses_other_classes(photos: Path, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("image,label\n00.png,zebra\n01.png,gnu\n")
    failed(pluralis("evaluate", trained, "--images", photos, "--labels", tmp_path / "other.csv"), "zebra", "line 2")


def test_evaluate_takes_the_classes_in_any_order(photos: Path, trained: Path, tmp_path: Path) -> None:
    classes = read_snapshot(trained / "model").meta["classes"]
    figures = []
    for order in (classes, classes[::-1]):
        rows = [",".join(["image", *order])]
        for line in (photos / "labels.csv").read_text().splitlines()[1:]:
            image, label = line.split(",")
            rows.append(",".join([image, *("1" if c == label else "-1" for c in order)]))
        (tmp_path / "wide.csv").write_text("\n".join(rows))
        words = ["evaluate", trained, "--images", photos, "--labels", tmp_path / "wide.csv", "--json"]
        figures.append(json.loads(pluralis(*words).stdout))
    assert figures[0] == figures[1]


def test_odd_names_of_folders_and_files(photos: Path, trained: Path, tmp_path: Path) -> None:
    """Brackets, a cat outside of the basic plane, equal names in two folders."""
    for name in ("a[b]", "🐱"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes((photos / "00.png").read_bytes())
    folders = [tmp_path / "a[b]", tmp_path / "🐱"]
    done = pluralis("predict", trained, *folders, "--out", tmp_path / "[p].csv", "--top-k", "1")
    assert done.returncode == 0, done.stderr
    assert "[p].csv" in done.stdout
    names = [row[0] for row in csv.reader((tmp_path / "[p].csv").open())][1:]
    assert len(set(names)) == 2
    labels = write(tmp_path, "image,label\n" + "x.png,dog\n")
    words = ["train", "--images", tmp_path / "🐱", "--labels", labels, "--out", tmp_path / "run[1]"]
    settings = [w for setting in [*FAST, "select.rule=last", "select.fraction=0"] for w in ("--set", setting)]
    done = pluralis(*words, *settings)
    assert done.returncode == 0, done.stderr
    assert "run[1]" in done.stdout


def test_predict_csv_and_json_agree(photos: Path, trained: Path, tmp_path: Path) -> None:
    for name in ("p.csv", "p.json"):
        done = pluralis("predict", trained, photos, "--out", tmp_path / name, "--top-k", "3")
        assert done.returncode == 0, done.stderr
    rows = list(csv.reader((tmp_path / "p.csv").open()))
    document = json.loads((tmp_path / "p.json").read_text())
    assert rows[0] == ["image", "label", "probability"]
    assert len(rows) == 1 + 3 * 24
    flat = [[e["image"], x["label"], f"{x['probability']:.6f}"] for e in document for x in e["labels"]]
    assert rows[1:] == flat
    probabilities = [x["probability"] for x in document[0]["labels"]]
    assert probabilities == sorted(probabilities, reverse=True)


def test_predict_threshold(photos: Path, trained: Path, tmp_path: Path) -> None:
    classes = len(read_snapshot(trained / "model").meta["classes"])
    for threshold, count in (("0", 24 * classes), ("1", 24)):  # every label of every image, or one empty line an image
        done = pluralis("predict", trained, photos, "--out", tmp_path / "p.csv", "--threshold", threshold, "--force")
        assert done.returncode == 0
        assert len((tmp_path / "p.csv").read_text().splitlines()) == 1 + count
    failed(pluralis("predict", trained, photos, "--threshold", "1.5", "--out", tmp_path / "q.csv"), "from 0 to 1")
    failed(pluralis("predict", trained, photos, "--top-k", "11", "--out", tmp_path / "q.csv"), f"{classes} classes")


def test_predict_bad_input(photos: Path, trained: Path, tmp_path: Path) -> None:
    failed(pluralis("predict", trained, tmp_path / "nowhere"), "nowhere")
    failed(pluralis("predict", trained, tmp_path), "no image")
    failed(pluralis("predict", tmp_path, photos), "no finished run")
    (tmp_path / "cut.png").write_bytes((photos / "00.png").read_bytes()[:200])
    failed(pluralis("predict", trained, tmp_path / "cut.png", "--out", tmp_path / "p.csv"), "cut.png")
    assert not (tmp_path / "p.csv").exists()


def test_predict_writes_over_nothing_and_asks_first(photos: Path, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    out.write_text("mine")
    failed(pluralis("predict", tmp_path / "no run", photos, "--out", out), "p.csv is there already", "--force")
    assert out.read_text() == "mine"
    failed(pluralis("predict", tmp_path / "no run", photos, "--out", out / "q.csv"), "nothing can be written", "p.csv")
    assert pluralis("predict", trained, photos, "--out", out, "--force").returncode == 0
    assert out.read_text().startswith("image,label,probability")


def test_predict_leaves_out_what_does_not_open(photos: Path, trained: Path, tmp_path: Path) -> None:
    folder, bad, out = tmp_path / "new", tmp_path / "bad.csv", tmp_path / "p.csv"
    folder.mkdir()
    (folder / "good.png").write_bytes((photos / "00.png").read_bytes())
    (folder / "cut.png").write_bytes((photos / "00.png").read_bytes()[:200])
    (folder / "._good.png").write_bytes(b"\0\5\x16\7")
    words = ["predict", trained, folder, "--out", out, "--top-k", "1"]
    failed(pluralis(*words), "cut.png", "`pluralis data check`", "--leave-out")
    assert pluralis("data", "check", "--images", folder, "--out", bad).returncode == 1
    done = pluralis(*words, "--leave-out", bad)
    assert done.returncode == 0, done.stderr
    assert [row[0] for row in csv.reader(out.open())] == ["image", "good.png"]


def test_train_says_what_it_does_and_what_comes_next(photos: Path, tmp_path: Path) -> None:
    """Two stages of relabel, images without a label, the meaning of a figure, and the next command."""
    labels = write(
        tmp_path, "\n".join(["image,label", "00.png,", *(photos / "labels.csv").read_text().split("\n")[2:]])
    )
    settings = [*FAST, "train.epochs=1", "method.params.views=fast", "data.unlabelled=drop"]
    words = ["train", "--images", photos, "--labels", labels, "--out", tmp_path / "my run"]
    done = pluralis(*words, *(w for setting in settings for w in ("--set", setting)))
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert "--frozen trains its head alone" in said
    assert re.search(
        r"^(19|20) images to train on, [34] held out, \d+ classes; 1 without a label left out$", said, re.M
    )
    assert (
        said.index("val nll: how surprised") < said.index("stage 1 of 2, epoch 1/1") < said.index("stage 2 of 2, epoch")
    )
    assert said.count("val nll: how surprised") == 1
    assert "the last epoch was the best: more may help (--set train.epochs=2 and a new --out)" in said
    assert f"`pluralis relabel '{tmp_path / 'my run'}' --out missing.csv --html missing.html`" in said


def test_a_wrong_method_shows_before_the_data_is_read(tmp_path: Path) -> None:
    words = ["train", "--images", tmp_path / "nowhere", "--labels", tmp_path / "no.csv", "--out", tmp_path / "run"]
    failed(pluralis(*words, "--method", "relable"), "'relabel'")


def test_a_folder_that_cannot_be_is_named(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    failed(pluralis(*train_words(photos, tmp_path / "file" / "run")), "file/run cannot be written", "--out")


def write(folder: Path, text: str) -> Path:
    (folder / "labels.csv").write_text(text)
    return folder / "labels.csv"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("image,label\n00.png,dog\nmissing.png,dog\n", ["missing.png"]),
        ("image,label,value\n00.png,dog,1\n00.png,dog,-1\n", ["00.png", "dog", "line 3"]),
        ("image,dog,cat\n00.png,1,\n00.png,,1\n", ["00.png", "line 3"]),
        ("image,dog,cat\n00.png,1,0\n", ["unlisted"]),
        ("image,label,value\n00.png,dog,7\n", ["7", "line 2"]),
        ("image,label\n", ["labels.csv"]),
        ("", ["labels.csv"]),
        ("image,label\n00.png,dog\n01.png,\n02.png,cat\n", ["no label", "01.png", "--set data.unlabelled=drop"]),
    ],
)
def test_bad_label_files(photos: Path, tmp_path: Path, text: str, parts: list[str]) -> None:
    words = ["train", "--images", photos, "--labels", write(tmp_path, text), "--out", tmp_path / "run"]
    words += [w for setting in FAST for w in ("--set", setting)]
    failed(pluralis(*words, "--set", "select.rule=last", "--set", "select.fraction=0"), *parts)


def test_an_unknown_class_is_named_with_its_nearest(photos: Path, tmp_path: Path) -> None:
    labels = write(tmp_path, "image,label\n00.png,dog\n01.png,dgo\n")
    words = ["train", "--images", photos, "--labels", labels, "--out", tmp_path / "run"]
    failed(pluralis(*words, "--set", 'data.options.classes=["dog", "cat"]'), "dgo", "dog", "line 3")


def test_bad_images_are_named(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("not a picture")
    labels = write(tmp_path, "image,label\ntext.jpg,dog\n")
    words = ["train", "--images", tmp_path, "--labels", labels, "--out", tmp_path / "run", "--set", "select.rule=last"]
    words += [w for setting in [*FAST, "select.fraction=0"] for w in ("--set", setting)]
    failed(pluralis(*words), "text.jpg")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--method", "grr"], ["'gr'"]),
        (["--set", "train.lrr=1"], ["train.lr"]),
        (["--set", "method.params.alhpa=1", "--method", "em"], ["alpha"]),
        (["--set", "model.backbone=resnet51"], ["resnet"]),
        (["--set", "run.device=cuda:7x"], ["run.device"]),
        (["--recipe", "nowhere.toml"], ["nowhere.toml"]),
        (["--format", "yolo"], ["yolo", "coco"]),
        (["--format", "scenes", "--set", "data.options.foo=1"], ["foo"]),
        (["--set", "data.options.path=x"], ["path"]),
        (["--set", "data.options.classes=3"], ["classes"]),
        (["--set", 'data.options.classes=["a", "a"]'], ["classes"]),
        (["--set", "run.device=meta"], ["run.device"]),
        (["--out", "README.md"], ["README.md", "folder"]),
    ],
)
def test_bad_settings(photos: Path, tmp_path: Path, words: list[str], parts: list[str]) -> None:
    failed(pluralis(*train_words(photos, tmp_path / "run"), *words), *parts)


def test_train_without_data_says_what_to_name(tmp_path: Path) -> None:
    failed(pluralis("train", "--out", tmp_path / "run"), "--images")
    failed(pluralis("train", "--out", tmp_path / "run2", "--images", tmp_path), "--labels")


def start(words: list[object], out: Path) -> subprocess.Popen[str]:
    """Start a run and wait until its first epoch is saved."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pluralis", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    until = time.monotonic() + 120
    while not list(out.glob("checkpoints/*-*1-*.json")) and time.monotonic() < until:
        time.sleep(0.02)
    return process


LONG = ["method.name=gr", "train.epochs=20", "train.lr=1e-5", "run.save_seconds=0"]


def test_a_full_disk_ends_with_one_line_and_loses_nothing(photos: Path, tmp_path: Path) -> None:
    """A file-size limit stands in for a full disk: after the first epoch, the kernel refuses larger writes."""
    words = train_words(photos, tmp_path / "run", *LONG)
    process = start(words, tmp_path / "run")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
    stdout, stderr = process.communicate(timeout=60)
    failed(subprocess.CompletedProcess([], process.returncode, stdout, stderr), "cannot write", "the same command")
    saved = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert any(name.endswith(".json") for name in saved)
    assert not any(name.endswith(".tmp") for name in saved)
    done = pluralis(*words)
    assert done.returncode == 0, done.stderr
    assert "epoch 1/20" not in done.stdout
    assert pluralis(*train_words(photos, tmp_path / "whole", *LONG)).returncode == 0
    first, second = (read_snapshot(tmp_path / name / "model") for name in ("run", "whole"))
    assert state_hash(first.tensors) == state_hash(second.tensors)


def test_a_diverging_run_names_the_images(photos: Path, tmp_path: Path) -> None:
    settings = ["train.optimizer=sgd", "train.lr=1000", "train.weight_decay=1000", "train.epochs=20"]
    failed(pluralis(*train_words(photos, tmp_path / "run", *settings)), ".png", "train.lr")


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_same_command_goes_on(photos: Path, tmp_path: Path, which: signal.Signals) -> None:
    words = train_words(photos, tmp_path / "run", *LONG)
    process = start(words, tmp_path / "run")
    process.send_signal(which)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "run the same command to go on" in stderr
    done = pluralis(*words)
    assert done.returncode == 0, done.stderr
    assert "epoch 1/20" not in done.stdout
    assert "epoch 20/20" in done.stdout


def test_two_processes_do_not_share_a_folder(photos: Path, tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "run").mkdir()
    with open(tmp_path / "run" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed(pluralis(*train_words(photos, tmp_path / "run")), "another process")


def test_methods_lists_parameters_defaults_and_papers() -> None:
    found = {entry["name"]: entry for entry in json.loads(pluralis("methods", "--json").stdout)}
    assert {"bce", "an", "em", "gr"} <= found.keys()
    assert found["em"]["parameters"] == {"alpha": 0.2}
    assert found["gr"]["parameters"]["wT"] == 2
    assert all(entry["paper"] and entry["what"] for entry in found.values())
    assert "sigmaT=0.5" in pluralis("methods").stdout
    assert (found["gr"]["start_bias"], found["gr"]["deep_start_bias"]) == ("log-odds", "equal")


def test_help_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys\nsys.argv = ['pluralis', '--help']\nfrom pluralis.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'numpy', 'sklearn', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout
