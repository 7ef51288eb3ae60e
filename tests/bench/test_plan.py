"""From a spec to runs: recipes, keys that say what a result depends on, the order, and choices."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pluralis
from pluralis.bench import identity
from pluralis.bench.plan import Place, Plan, Score
from pluralis.bench.runs import Run
from pluralis.bench.spec import Spec
from pluralis.config import Recipe
from pluralis.errors import DataError, RecipeError
from pluralis.models.weights import _imagenet_file
from tests.bench.benches import BASE, TOY, make_plan, write_spec

ROWS = '[[rows]]\nname = "an"\nmethod = "an"\n[[rows]]\nname = "gr"\nmethod = "gr"\n'


def nothing(run: Run) -> None:
    return None


def by_key(scores: dict[str, float]) -> Score:
    return lambda run: scores.get(run.key)


def places(runs: list[Run]) -> list[tuple[str, str, int, int]]:
    return [(run.row, run.column, run.draw, run.seed) for run in runs]


def key(*settings: str, views: tuple[str, ...] = (), data: str = "d") -> str:
    return identity.run_key(Recipe.load(Path(BASE), settings), list(views), data)


def test_every_row_has_one_seed_before_any_has_two() -> None:
    found = places(make_plan(TOY, Path("out")).runs(nothing))
    assert found[:4] == [
        ("an", "one label", 1200, 0),
        ("an", "half", 0, 0),
        ("gr", "one label", 1200, 0),
        ("gr", "half", 0, 0),
    ]
    assert [row for row, *_ in found[4:6]] == ["all labels"] * 2
    assert {seed for *_, seed in found[6:]} == {1}
    assert len(found) == 10


def test_a_key_says_what_decides_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    same = ["run.workers=2", "run.cache=none", "run.device=cuda", "run.save_seconds=1", "data.images=/elsewhere"]
    for setting in same:
        assert key(setting) == key(), setting
    other = [
        "train.lr=0.1",
        "run.seed=1",
        "data.protocol_seed=3",
        "method.name=gr",
        "select.rule=clean",
        "data.size=32",
    ]
    other += ["run.precision=bf16", "run.watch_test=true", "data.test.options.count=31", "model.head=lse"]
    other += ["run.watch_train=5", "run.deterministic=true", "run.cache=features"]
    found = [key(setting) for setting in other]
    found += [key(), key(views=("standard",)), key(data="e")]
    assert len(set(found)) == len(found)
    assert key(views=("fast",)) == key()
    monkeypatch.setattr(pluralis, "__version__", "99")
    assert key() not in found


def test_a_draw_that_changes_nothing_makes_no_other_run() -> None:
    complete = "data.protocol=complete"
    assert key(complete, "data.protocol_seed=3") == key(complete, "data.protocol_seed=4")


@pytest.mark.parametrize(
    ("protocol", "more"),
    [
        ("single-positive", []),
        ("pick-area", []),
        ("one-positive-all-negatives", []),
        ("known-ratio", ["data.protocol_share=0.5"]),
        ("drop-positives", ["data.protocol_share=0.5"]),
        ("flip-positives", ["data.protocol_share=0.5"]),
        ("fixed-per-class", ["data.protocol_count=2"]),
    ],
)
def test_a_draw_of_the_labels_makes_another_run(protocol: str, more: list[str]) -> None:
    drawn = [f"data.protocol={protocol}", *more]
    assert key(*drawn, "data.protocol_seed=3") != key(*drawn, "data.protocol_seed=4")


@pytest.mark.parametrize(("protocol", "seed"), [("known-ratio", 0), ("single-positive", 1200)])
def test_a_seed_that_is_left_open_is_the_one_that_is_drawn_with(protocol: str, seed: int) -> None:
    settings = [f"data.protocol={protocol}", *(["data.protocol_share=0.5"] if protocol == "known-ratio" else [])]

    def open_key(*more: str) -> str:
        return identity.run_key(Recipe.load(None, [*settings, *more]), [], "d")

    assert open_key() == open_key(f"data.protocol_seed={seed}")
    assert open_key() != open_key("data.protocol_seed=7")


def test_weights_are_known_by_their_content(tmp_path: Path) -> None:
    for name, content in (("a.safetensors", b"1"), ("b.safetensors", b"1"), ("c.safetensors", b"2")):
        (tmp_path / name).write_bytes(content)
    a, b, c = (key(f"model.weights={tmp_path / name}.safetensors") for name in "abc")
    assert a == b != c


def test_published_weights_have_one_key_wherever_they_lie(tmp_path: Path) -> None:
    network = "model.backbone=efficientnet_lite0"
    file, sha256 = _imagenet_file("efficientnet_lite0")
    moved = tmp_path / f"mine{file.suffix}"
    shutil.copy(file, moved)
    words = [network, f"model.weights={moved}", f"model.sha256={sha256}"]
    published = key(network, "model.weights=imagenet")
    assert key(*words) == published
    assert key("model.backbone=resnet18", *words[1:]) not in (published, key("model.backbone=resnet18"))  # not its own
    misses = identity._file_hash.cache_info().misses
    assert key(*words) == published
    assert identity._file_hash.cache_info().misses == misses  # hundreds of runs start from one file
    moved.write_bytes(moved.read_bytes()[:-1])
    assert key(*words) != published


def test_runs_leave_their_decoded_pictures_in_the_folder_of_the_bench(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, ROWS)
    mine, named = (make_plan(spec, tmp_path / "out", *words).runs(nothing)[0] for words in ((), ("run.decoded=here",)))
    assert (mine.recipe.run.decoded, named.recipe.run.decoded) == (str(tmp_path / "out" / "decoded"), "here")
    assert mine.key == named.key


def write_images(folder: Path, value: str = "1", side: int = 8) -> Recipe:
    folder.mkdir()
    for number in range(4):
        Image.fromarray(np.full((side, side, 3), number, np.uint8)).save(folder / f"{number}.png")
    lines = ["image,label,value", f"0.png,cat,{value}", "1.png,cat,-1", "2.png,cat,1", "3.png,cat,1"]
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return Recipe.from_dict({"data": {"images": str(folder), "labels": str(folder / "labels.csv")}})


def test_the_data_hash_follows_the_data_and_not_its_place(tmp_path: Path) -> None:
    one, two, three = (write_images(tmp_path / name, value) for name, value in (("a", "1"), ("b", "1"), ("c", "-1")))
    assert identity.data_hash(one.data) == identity.data_hash(two.data)
    assert identity.data_hash(one.data) != identity.data_hash(three.data)
    assert identity.data_hash(one.data) != identity.data_hash(write_images(tmp_path / "d", side=800).data)
    tested = replace(one.data, test={"images": one.data.images, "labels": one.data.labels})
    assert identity.data_hash(tested) != identity.data_hash(one.data)


def write_boxes(folder: Path, side: int) -> Recipe:
    """Two pictures in the layout of VOC, both with a dog of 10 × 10 and a cat of some side."""
    for name in ("ImageSets/Main", "JPEGImages", "Annotations"):
        (folder / name).mkdir(parents=True)
    for name in "ab":
        Image.new("RGB", (16, 16)).save(folder / "JPEGImages" / f"{name}.jpg")
        sides = {"dog": 10, "cat": side}
        boxes = [
            f"<object><name>{kind}</name><difficult>0</difficult><bndbox><xmin>1</xmin><ymin>1</ymin>"
            f"<xmax>{size}</xmax><ymax>{size}</ymax></bndbox></object>"
            for kind, size in sides.items()
        ]
        (folder / "Annotations" / f"{name}.xml").write_text(f"<annotation>{''.join(boxes)}</annotation>")
    for kind in ("dog", "cat"):
        (folder / "ImageSets" / "Main" / f"{kind}_train.txt").write_text("a 1\nb 1\n")
    return Recipe.from_dict({"data": {"format": "voc", "images": str(folder)}})


def test_boxes_that_decide_which_label_is_shown_are_part_of_the_data(tmp_path: Path) -> None:
    small, large = (write_boxes(tmp_path / str(side), side).data for side in (5, 15))
    assert identity.data_hash(small) == identity.data_hash(large)  # nobody looks at the boxes
    small, large = (replace(part, protocol="pick-largest") for part in (small, large))
    assert identity.data_hash(small) != identity.data_hash(large)
    hashes = {identity.data_hash(replace(small, protocol="pick-area", protocol_seed=seed)) for seed in range(20)}
    assert len(hashes) > 1
    parts = [replace(small, protocol="pick-area", protocol_seed=seed) for seed in (1, 2)]
    assert len({identity.source_part(part) for part in (small, *parts)}) == 3


def test_layers_of_settings_and_another_method(tmp_path: Path) -> None:
    base = write_spec(tmp_path, Path(BASE).read_text() + '[method]\nname = "gr"\nparams = {q1 = 0.5}\n', "#base.toml")
    base.write_text(base.read_text().split("\n", 2)[2])  # without the head of a spec
    text = (
        f'title = "T"\nbase = "{base.name}"\nselection = "observed"\n'
        "settings = {train.lr = 0.1, train.epochs = 3, method.start_bias = 'zero'}\nseeds = 1\n"
        "[[columns]]\nname = 'a'\nsettings = {train.lr = 0.2}\n"
        "[[columns]]\nname = 'b'\n"
        "[[rows]]\nname = 'an'\nmethod = 'an'\nsettings = {train.batch_size = 4}\n"
        "[[rows]]\nname = 'gr'\nsettings = {method.params.q2 = 0.25}\n"
        "[[rows]]\nname = 'gr anew'\nsettings = {'method.params' = {q3 = 0.75}}\n"
        "[[overrides]]\nrows = ['an']\ncolumns = ['a']\nsettings = {train.lr = 0.3}\n"
        "[[overrides]]\nrows = ['gr']\ncolumns = ['b']\nskip = true\n"
    )
    spec = write_spec(tmp_path, text)
    found = {(run.row, run.column): run.recipe for run in make_plan(spec, tmp_path, "train.epochs=5").runs(nothing)}
    assert sorted(found) == [("an", "a"), ("an", "b"), ("gr", "a"), ("gr anew", "a"), ("gr anew", "b")]
    assert found["an", "a"].train.lr == 0.3
    assert found["an", "b"].train.lr == 0.1
    assert found["gr", "a"].train.lr == 0.2
    assert found["an", "a"].method.params == {}  # the base's are those of another method
    assert found["gr", "a"].method.params == {"q1": 0.5, "q2": 0.25}
    assert found["gr anew", "a"].method.params == {"q3": 0.75}
    assert {recipe.train.epochs for recipe in found.values()} == {5}  # the command line has the last word
    assert {recipe.select.rule for recipe in found.values()} == {"observed"}
    assert {recipe.method.start_bias for recipe in found.values()} == {"zero"}


def test_draws_seeds_and_views(tmp_path: Path) -> None:
    text = 'seeds = [0, 8]\ndraws = [5, 6]\nviews = ["standard"]\n' + ROWS + 'views = ["thorough", "fast"]\n'
    runs = make_plan(write_spec(tmp_path, text), tmp_path).runs(nothing)
    assert places(runs)[:4] == [("an", "", 5, 0), ("gr", "", 5, 0), ("an", "", 6, 0), ("gr", "", 6, 0)]
    assert places(runs)[4:6] == [("an", "", 5, 8), ("gr", "", 5, 8)]
    assert {run.row: run.views for run in runs} == {"an": ["standard"], "gr": ["thorough"]}
    assert {run.recipe.data.protocol_seed for run in runs} == {5, 6}
    assert len({run.key for run in runs}) == 8


def test_draws_take_the_seeds_in_turn(tmp_path: Path) -> None:
    """Every seed and every draw as often as the others, and of what has no draw every seed once."""
    text = "seeds = 3\ndraws = [5, 6, 7]\nseeds_a_draw = 2\n" + ROWS
    text += '[[rows]]\nname = "all"\nmethod = "bce"\nsettings = { data.protocol = "complete" }\n'
    runs = make_plan(write_spec(tmp_path, text), tmp_path).runs(nothing)
    found = {row: {(run.draw, run.seed) for run in runs if run.row == row} for row in ("an", "gr", "all")}
    assert found["an"] == found["gr"] == {(5, 0), (5, 1), (6, 1), (6, 2), (7, 2), (7, 0)}
    assert sorted(seed for _, seed in found["all"]) == [0, 1, 2]
    assert len({run.key for run in runs}) == 2 * 6 + 3


GRID = (
    'selection = "clean"\nseeds = 2\n[[rows]]\nname = "an"\nmethod = "an"\n'
    'grid = {"train.head_lr" = [1, 10], "train.lr" = [0.1, 0.2, 0.3]}\n'
)


def rate(run: Run) -> tuple[float, float]:
    return run.recipe.train.head_lr, run.recipe.train.lr


def test_every_combination_is_tried_and_the_best_gets_all_seeds(tmp_path: Path) -> None:
    plan = make_plan(write_spec(tmp_path, GRID), tmp_path)
    trials = plan.runs(nothing)
    assert [rate(run) for run in trials] == [(h, lr) for h in (1, 10) for lr in (0.1, 0.2, 0.3)]
    assert all(run.trial and run.seed == 0 for run in trials)
    scores = dict(zip([run.key for run in trials], [0.1, 0.6, 0.1, 0.7, 0.9, 0.2], strict=True))
    missing = dict(list(scores.items())[:-1])
    assert all(run.trial for run in plan.runs(by_key(missing)))  # one score is lacking
    final = [run for run in plan.runs(by_key(scores)) if not run.trial]
    assert [(rate(run), run.seed, run.row) for run in final] == [((10, 0.2), 0, "an"), ((10, 0.2), 1, "an")]
    assert final[0].key in scores  # what was tried is not made again
    scores[final[0].key] = -math.inf  # it diverged
    assert {rate(run) for run in plan.runs(by_key(scores)) if not run.trial} == {(10, 0.1)}


def test_one_key_after_the_other(tmp_path: Path) -> None:
    plan = make_plan(write_spec(tmp_path, GRID + 'search = "in-turn"\n'), tmp_path)
    first = plan.runs(nothing)
    assert [rate(run) for run in first] == [(1, 0.2), (10, 0.2)]
    scores = {first[0].key: 0.9, first[1].key: 0.8}
    second = plan.runs(by_key(scores))
    assert [rate(run) for run in second] == [(1, 0.2), (10, 0.2), (1, 0.1), (1, 0.3)]
    scores |= {second[2].key: 0.95, second[3].key: 0.1}
    final = [run for run in plan.runs(by_key(scores)) if not run.trial]
    assert [(rate(run), run.seed) for run in final] == [((1, 0.1), 0), ((1, 0.1), 1)]


def test_if_all_diverge_nothing_is_chosen(tmp_path: Path) -> None:
    plan = make_plan(write_spec(tmp_path, GRID), tmp_path)
    assert all(run.trial for run in plan.runs(lambda run: -math.inf))


def test_a_line_for_each_value(tmp_path: Path) -> None:
    plan = make_plan(write_spec(tmp_path, GRID.replace("clean", "last") + 'choose = "all"\n'), tmp_path)
    runs = plan.runs(nothing)
    assert len(runs) == 12
    assert runs[0].row == "an, head_lr 1, lr 0.1"
    assert {run.spec_row for run in runs} == {"an"}
    assert runs[0].grid == {"train.head_lr": 1, "train.lr": 0.1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GRID.replace('"clean"', '"last"'), 'choose = "validation" goes by the score of held-out rows'),
        (ROWS.replace('method = "gr"', 'method = "grr"'), "row 'gr': there is no method 'grr'; did you mean 'gr'?"),
        (
            ROWS + "settings = {train.lrr = 1}\n",
            "row 'gr': there is no key 'train.lrr' in a recipe; did you mean 'train.lr'",
        ),
        (ROWS + 'base = "nowhere.toml"\n', "row 'gr': the base 'nowhere.toml' is not there: looked for"),
        (ROWS + "settings = {'data.test' = {}}\n", "row 'gr': there is no test set to measure on"),
        (ROWS + "views = ['slow']\n", "row 'gr': there are no views 'slow'"),
        (ROWS + "settings = {method.params.nonsense = 3}\n", "row 'gr': loss gr: unknown parameter 'nonsense'"),
        (ROWS + "settings = {method.params.q1 = 'a'}\n", "row 'gr': loss gr: q1 is 'a'; give a finite number"),
        (
            ROWS.replace('"gr"', '"cls"') + "settings = {method.params.x = 3}\n",
            "row 'cls': method cls: unknown parameter",
        ),
        (ROWS + "settings = {method.start_bias = 'none'}\n", "row 'gr': method.start_bias is 'none'"),
        (
            ROWS.replace('"gr"', '"lac"') + "settings = {model.head = 'auto', train.lr = 1e-4, train.head_lr = 10}\n",
            "row 'lac': train.lr is 0.0001, which lac does not keep while its head is left open: set model.head =",
        ),
        (ROWS + "settings = {model.backbone = 'tniy'}\n", "row 'gr': there is no backbone 'tniy'"),
        (ROWS + "settings = {model.head = 'linaer'}\n", "row 'gr': there is no head 'linaer'"),
        (ROWS + "settings = {model.head_params.depth = 3}\n", "row 'gr': head 'linear' has no parameter 'depth'"),
        (ROWS + "settings = {train.freeze = 9}\n", "row 'gr': cannot freeze 9 stages of backbone 'tiny'"),
        (ROWS + "settings = {run.precision = 'fp64'}\n", "row 'gr': run.precision is 'fp64'"),
        (
            ROWS + "[[columns]]\nname = 'c'\nsettings = {train.epochs = -1}\n",
            "row 'an', column 'c': train.epochs is -1",
        ),
    ],
)
def test_mistakes_show_before_any_work(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        make_plan(write_spec(tmp_path, text), tmp_path / "out")
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("settings = {run.seed = 7}\n" + ROWS, []),
        (ROWS + "settings = {run.seed = 7}\n", []),
        (ROWS, ["run.seed=7"]),
        ("draws = [1, 2]\nsettings = {data.protocol_seed = 7}\n" + ROWS, []),
        ("draws = [1, 2]\n" + ROWS, ["data.protocol_seed=7"]),
    ],
)
def test_a_seed_beside_seeds_or_draws_is_refused(tmp_path: Path, text: str, settings: list[str]) -> None:
    with pytest.raises(RecipeError, match="(run.seed|protocol_seed) has no effect, as (seeds|draws) decide it"):
        make_plan(write_spec(tmp_path, text), tmp_path / "out", *settings)


def test_without_draws_the_seed_of_the_labels_may_be_set(tmp_path: Path) -> None:
    runs = make_plan(write_spec(tmp_path, ROWS), tmp_path / "out", "data.protocol_seed=7").runs(nothing)
    assert {run.draw for run in runs} == {7}


def test_columns_without_images_stay_empty(tmp_path: Path) -> None:
    part = write_images(tmp_path / "images").data
    text = (
        "seeds = 1\n[[columns]]\nname = 'mine'\nsettings = {data.format = 'csv', 'data.options' = {},"
        " 'data.test' = {options = {}}, data.protocol = 'as-given', data.unlabelled = 'keep'}\n"
        "[[columns]]\nname = 'digits'\n" + ROWS
    )
    spec = Spec.load(write_spec(tmp_path, text))
    plan = Plan(spec, Place(tmp_path), [])
    assert plan.without_data == ["mine"]
    assert {run.column for run in plan.runs(nothing)} == {"digits"}
    named = Place(tmp_path, {"mine": part.images}, {"mine": part.labels})
    plan = Plan(spec, named, [])
    assert plan.without_data == []
    assert {run.recipe.data.images for run in plan.runs(nothing)} == {part.images, ""}
    with pytest.raises(RecipeError, match="there is no column 'mein'; did you mean 'mine'"):
        Plan(spec, Place(tmp_path, {"mein": part.images}), [])
    with pytest.raises(DataError, match="no data: name the folder of the images with --images DIR or --images COLUMN"):
        Plan(replace(spec, columns=spec.columns[:1]), Place(tmp_path), [])


def test_the_code_is_what_trains_and_what_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of what decides a stored number is another code, a change of what shows it is none."""
    assert Path("bench/perform.py") in identity.deciding_modules(Path(identity.pluralis.__file__).parent)
    for name in ("losses/gr.py", "bench/perform.py", "bench/run_folders.py", "bench/store.py", "bench/render.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.setattr(identity.pluralis, "__file__", str(tmp_path / "__init__.py"))

    def now() -> str:
        return identity.code_hash.__wrapped__()

    first = now()
    for name, same in (("bench/render.py", True), ("losses/gr.py", False), ("bench/perform.py", False)):
        (tmp_path / name).write_text("changed = 1\n")
        assert (now() == first) is same
        first = now()
