"""Specs: what they may hold, what a scale leaves, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from pluralis.bench.spec import Spec
from pluralis.bench.toml_tables import flatten
from pluralis.errors import RecipeError
from tests.bench.benches import TOY, write_spec

ROW = '[[rows]]\nname = "an"\nmethod = "an"\n'


def load(tmp_path: Path, text: str, scale: str = "") -> Spec:
    return Spec.load(write_spec(tmp_path, text), scale)


def test_the_toy_spec() -> None:
    spec = Spec.load(TOY)
    assert [row.name for row in spec.rows] == ["an", "gr", "all labels", "MIME"]
    assert spec.columns[1].settings["data.protocol_share"] == 0.5
    assert spec.seeds_in(spec.row("gr"), "half") == [0, 1]
    assert spec.seeds_in(spec.row("MIME"), "half") == []
    assert spec.published[0].value("an", "one label") == (85.89, 0.38)
    assert spec.published[0].value("gr", "one label") == (89.83, None)
    assert spec.published[0].value("all labels", "one label") is None


def test_settings_by_dotted_key_and_as_tables() -> None:
    written = {"train": {"lr": 1, "epochs": 2}, "method.params": {"tau": 3}, "data": {"options": {}}}
    assert flatten(written) == {"train.lr": 1, "train.epochs": 2, "method.params": {"tau": 3}, "data.options": {}}


def test_a_scale_takes_what_belongs_to_it(tmp_path: Path) -> None:
    text = (
        'settings = {train.lr = 1.0, train.epochs = 9}\nabout = "All."\n'
        '[scale.full]\n[scale.small]\nseeds = [4, 7]\ndraws = [1, 2]\nabout = "Small."\nsettings = {train.lr = 2.0}\n'
        + ROW
        + '[[rows]]\nname = "gr"\nmethod = "gr"\nscales = ["full"]\n'
        + '[[overrides]]\nrows = ["an"]\nscales = ["small"]\nsettings = {train.epochs = 1}\nseeds = 1\n'
    )
    small, full = load(tmp_path, text, "small"), load(tmp_path, text)
    assert (small.settings["train.lr"], small.settings["train.epochs"], small.draws) == (2.0, 9, [1, 2])
    assert [row.name for row in small.rows] == ["an"]
    assert small.seeds_in(small.rows[0], "") == [0]
    assert small.about == "All. Small."
    assert [row.name for row in full.rows] == ["an", "gr"]
    assert full.seeds_in(full.rows[0], "") == [0, 1, 2]
    assert (full.settings["train.lr"], full.scale_name, small.scale_name) == (1.0, "full", "small")


SWEEP = "seeds = 1\n"
GRID = '[[rows]]\nname = "gr"\nmethod = "gr"\nchoose = "all"\ngrid = {"train.lr" = [1, 2]}\n'
FIGURE = ROW + GRID + "[[figures]]\n"
PUBLISHED = '[[published]]\nsource = "P"\nbackbone = "R"\nresolution = 1\nvalues = {%s}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seedz = 3\n" + ROW, "there is no key 'seedz' in a spec; did you mean 'seeds'?"),
        (ROW + "metod = 1\n", "there is no key 'rows[0].metod' in a spec; did you mean 'method'?"),
        ('title = "T"\n' + ROW, "row 'an' has no recipe to start from: name one with base"),
        ("# no title\n" + ROW, "there is no key 'title': add it"),
        ("[[rows]]\nmethod = 'an'\n", "rows[0] has no key 'name': add it"),
        ("", "there are no [[rows]]"),
        (ROW + ROW, "[[rows]] has 'an' twice"),
        ('baseline = "ann"\n' + ROW, "baseline is 'ann', which is no row: did you mean 'an'?"),
        (ROW + PUBLISHED % "ann = 3", "values has the row 'ann', which is not known: did you mean 'an'?"),
        (ROW + PUBLISHED % 'an = "viel"', "'viel' is no figure"),
        (ROW + PUBLISHED % "an = {VOC = 3}", "values of 'an' must be given as one figure"),
        (ROW + '[[columns]]\nname = "VOC"\n' + PUBLISHED % "an = 3.0", "must be given by column: VOC"),
        (ROW + '[[columns]]\nname = "VOC"\n' + PUBLISHED % "an = {VOX = 3.0}", "the column 'VOX', which is not known"),
        (ROW + '[[overrides]]\nrows = ["gr"]\n', "[[overrides]], rows has 'gr', which is not known"),
        ('selection = "best"\n' + ROW, "selection is 'best'; it must be one of last, clean, observed"),
        ('metric = "accuracy"\n' + ROW, "metric 'accuracy' is not known; choose from 'mAP', 'CF1', 'OF1'"),
        ('metric = "standrad mAP"\n' + ROW, "metric 'standrad mAP' is not known; did you mean 'standard mAP'?"),
        ('also = ["standard mAP"]\n' + ROW, "metric 'standard mAP' needs the views standard: add views"),
        ('also = ["observed CF1"]\n' + ROW, "metric 'observed CF1' needs the thresholds: add thresholds = true"),
        ('metric = ""\n' + ROW, "metric '' is not known"),
        (SWEEP + 'baseline = "gr"\n' + ROW + GRID, "baseline is 'gr', which has a line for each value"),
        (SWEEP + 'baseline = "x"\n' + ROW + '[[rows]]\nname = "x"\nseeds = 0\n', "'x', which has no runs of ours"),
        ("seeds = -1\n" + ROW, "seeds is -1: give a number of seeds"),
        ("seeds = true\n" + ROW, "seeds must be of type int, not True"),
        ('seeds = ["a"]\n' + ROW, "seeds[0] must be of type int, not 'a'"),
        (ROW + 'grid = {"train.lr" = []}\n', "the grid of 'train.lr' is empty"),
        (ROW + "grid = {lr = [1]}\n", "the grid has 'lr': give a whole key, such as train.lr"),
        ("seeds = []\n" + ROW, "seeds is []: give a number of seeds, or a list of different ones"),
        ("seeds = [0, 0]\n" + ROW, "seeds is [0, 0]"),
        ("draws = [3, 3]\n" + ROW, "draws is [3, 3]"),
        ("draws = [3, 4]\nseeds_a_draw = 3\n" + ROW, "seeds_a_draw is 3, with 3 seeds and 2 draws at the scale full"),
        ("draws = [3]\nseeds_a_draw = 2\n" + ROW, "with 3 seeds and 1 draws"),
        ("draws = [3, 4]\nseeds_a_draw = -1\n" + ROW, "give fewer than there are seeds"),
        ("[scale.small]\nseeds_a_draw = 2\n" + ROW, "seeds_a_draw is 2, with 3 seeds and 0 draws at the scale small"),
        (ROW + "[[columns]]\nname = ''\n", "a row or a column has an empty name"),
        ("[[rows]]\nname = ' '\n", "a row or a column has an empty name"),
        (ROW + PUBLISHED % 'an = "nan"', "'nan' is no figure"),
        (ROW + PUBLISHED % 'an = "3 ± inf"', "'3 ± inf' is no figure"),
        (ROW + 'scales = ["tiny"]\n', "scales has 'tiny', which is not known"),
        (ROW + 'scales = ["small"]\n', "there are no [[rows]] at the scale full"),
        ("[scale.tiny]\n" + ROW, "[scale] has 'tiny', which is not known"),
        (ROW + "[[figures]]\ntitle = 3\n", "[[figures]] number 1: it has no kind"),
        ("rows = 3\n", "rows must be of type list, not 3"),
        ("title = \n", "cannot read the spec"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        load(tmp_path, text)
    assert message in str(error.value)
    assert str(tmp_path / "spec.toml") in str(error.value)


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        ('kind = "densities"\nrows = ["ann"]', "it has the row 'ann', which is not known: did you mean 'an'?"),
        ('kind = "densities"\ncolumns = ["VOX"]', "columns has 'VOX', which is not known: did you mean 'VOC'?"),
        ('kind = "class-gain"\nbaseline = "ann"', "it has the row 'ann', which is not known"),
        ('kind = "densities"\nbins = "many"', "bins is 'many'; give a whole number"),
        ('kind = "densities"\nbins = 1', "bins is 1; give a whole number from 2"),
        ('kind = "densities"\npart = "val"', "part is 'val'; it must be one of train, test"),
        ('kind = "densities"\nof = 5', "of is 5; give a text"),
        ('kind = "learning-curves"\nwhat = [1]', "what is [1]; give a text or a list of texts"),
        ('kind = "learning-curves"\nrows = [["an"]]', "rows is [['an']]; give a list of names"),
        ('kind = "known-ratio"\nmetric = ["a"]', "metric is ['a']; give a text"),
        ('kind = "known-ratio"\nmetric = "mAp"', "the metric 'mAp' is not known; did you mean 'mAP'?"),
        ('kind = "sweep"\nkey = "train.lrr"', "key is 'train.lrr', which no recipe has; did you mean 'train.lr'"),
        ('kind = "sweep"\nkey = "train.lr"\nlines = 3', "lines is 3; give a text"),
        ('kind = "gradients"\nlosses = "an"', "losses is 'an'; give a list"),
        ('kind = "gradients"\nlosses = ["nope"]', "'nope'"),
        ('kind = "gradients"\nlosses = [{loss = "an", params = 5}]', "params = 5; give a table"),
        ('kind = "gradients"\nlosses = [{loss = "gr", params = {nope = 5}}]', "nope"),
        ('kind = "gradients"\nhighest = 0', "highest is 0; give a number above 0"),
        ('kind = "landscape"\nloss = "nope"', "loss is 'nope'; it must be one of"),
        ('kind = "landscape"\ndimensions = 3', "dimensions is 3; give a whole number from 1 to 2"),
        ('kind = "gradients"\ntitle = 5', "title is 5; give a text"),
        ('kind = "gradients"\nscales = "full"', "scales is 'full'; give a list of scales"),
    ],
)
def test_what_is_wrong_with_a_figure_is_said_before_anything_is_run(tmp_path: Path, figure: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        load(tmp_path, f'[[columns]]\nname = "VOC"\n{FIGURE}{figure}\n')
    assert message in str(error.value)
    assert "[[figures]] number 1: " in str(error.value)


def test_what_a_figure_may_name(tmp_path: Path) -> None:
    columns = '[[columns]]\nname = "VOC"\n'
    fine = FIGURE + 'kind = "sweep"\nkey = "method.params.b"\nrows = ["gr, lr 1", "an"]\nbaseline = "an"\n'
    load(tmp_path, columns + fine + 'columns = ["VOC"]\nmetric = "OF1"\n')
    ruled = f'selections = ["clean", "last"]\n{columns}{FIGURE}kind = "sweep"\nkey = "train.lr"\n'
    load(tmp_path, ruled + 'columns = ["VOC, clean"]\nmetric = "raw CF1"\n')
    with pytest.raises(RecipeError, match="did you mean 'VOC, last'|did you mean 'VOC, clean'|which is not known"):
        load(tmp_path, ruled + 'columns = ["VOC"]\n')


def test_without_columns_a_figure_has_none_to_choose_from(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="columns has 'VOC', which is not known: there are none"):
        load(tmp_path, FIGURE + 'kind = "densities"\ncolumns = ["VOC"]\n')


def test_keys_of_a_grid_need_no_quotes(tmp_path: Path) -> None:
    assert load(tmp_path, ROW + "grid = {train.lr = [1, 2]}\n").rows[0].grid == {"train.lr": [1, 2]}


def test_a_spec_or_a_scale_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"the spec 'papers/nothing.toml' is not there: looked for .*nothing.toml"):
        Spec.load(Path("papers/nothing.toml"))
    with pytest.raises(RecipeError, match=r"there is no scale 'small'; choose from 'full'"):
        load(tmp_path, ROW, "small")
    with pytest.raises(RecipeError, match=r"there is no scale 'full'; choose from 'small'"):
        load(tmp_path, "[scale.small]\n" + ROW)
