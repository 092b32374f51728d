"""dba.sklearn.DBAClassifier as scikit-learn knows estimators, on data made here."""

import inspect
import pathlib
import pickle
import sys
import warnings

import numpy
import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
if str(ROOT / "python") not in sys.path:
    sys.path.insert(0, str(ROOT / "python"))
pytest.importorskip("sklearn", reason="DBAClassifier needs scikit-learn")

from sklearn.base import clone, is_classifier  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.pipeline import Pipeline  # noqa: E402
from sklearn.preprocessing import FunctionTransformer  # noqa: E402

from dba.models.encoding import fill_missing  # noqa: E402
from dba.sklearn import DBAClassifier  # noqa: E402
from dba.sklearn.progress import Progress  # noqa: E402
from dba.sklearn.series import Standardiser, as_series  # noqa: E402
from dba.sklearn.training import hold_out  # noqa: E402

TINY = {"d": 16, "heads": 2, "layers": 1, "d_ffn": 16, "d_p": 4, "d_in": 8, "max_epochs": 15, "batch_size": 8,
        "learning_rate": 1e-2, "random_state": 0}


def bursts(cases=48, channels=2, time=20, seed=0):
    """Noise far from mean 0 and deviation 1 with a burst at a random moment: in the first channel, in the second, or in
    none. X (cases, channels, time), y names."""
    random = numpy.random.default_rng(seed)
    labels = numpy.arange(cases) % 3
    x = random.standard_normal((cases, channels, time))
    for case, label in enumerate(labels):
        begin = random.integers(0, 8)
        x[case, :, begin : begin + 4] += numpy.array([4.0 * (label == 0), 4.0 * (label == 1)])[:channels, None]
    return 100 + 5 * x, numpy.array(["first", "second", "none"])[labels]


def ragged(x, seed=1):
    """The same as a list of (time, channels) of different lengths."""
    random = numpy.random.default_rng(seed)
    return [one.T[: random.integers(12, one.shape[1] + 1)] for one in x]


@pytest.fixture(scope="module")
def fitted():
    x, y = bursts()
    return DBAClassifier(**TINY).fit(x, y), x, y


def test_learns_arrays_and_speaks_in_the_labels_it_was_given(fitted):
    model, x, y = fitted
    fresh, labels = bursts(seed=5)
    assert model.score(fresh, labels) > 0.9
    assert model.classes_.tolist() == ["first", "none", "second"] and set(model.predict(fresh)) == set(y)
    probabilities = model.predict_proba(fresh)
    assert probabilities.shape == (48, 3) and numpy.allclose(probabilities.sum(1), 1)
    assert (model.classes_[probabilities.argmax(1)] == model.predict(fresh)).all()
    assert model.n_features_in_ == 2 and model.n_iter_ == len(model.history_) <= 15
    losses = [epoch["validation_loss"] for epoch in model.history_]
    assert model.best_epoch_ == 1 + losses.index(min(losses))


def test_lists_of_different_lengths_and_their_order_do_not_matter(fitted):
    _, x, y = fitted
    series = ragged(x)
    model = DBAClassifier(**TINY).fit(series, y)
    assert model.score(ragged(bursts(seed=6)[0]), y) > 0.8
    probabilities = model.predict_proba(series)
    backwards = model.predict_proba(series[::-1])[::-1]
    one_by_one = numpy.concatenate([model.predict_proba([one]) for one in series[:5]])
    assert numpy.allclose(probabilities, backwards, atol=1e-5)
    assert numpy.allclose(probabilities[:5], one_by_one, atol=1e-5)
    objects = numpy.empty(len(series), dtype=object)
    objects[:] = series
    assert numpy.array_equal(model.predict_proba(objects), probabilities)
    longer = model.predict_proba([numpy.tile(series[0], (40, 1))])
    assert numpy.isfinite(longer).all()


def test_layouts_mean_what_they_say(fitted):
    model, x, _ = fitted
    assert numpy.array_equal(model.predict_proba(x), model.predict_proba([one.T for one in x]))
    assert numpy.array_equal(model.predict_proba(torch.from_numpy(x)), model.predict_proba(x))
    single = DBAClassifier(**{**TINY, "max_epochs": 1}).fit(x[:, 0], bursts()[1])
    assert single.n_features_in_ == 1
    assert numpy.array_equal(single.predict_proba(x[:, 0]), single.predict_proba([one[0] for one in x]))


def test_same_seed_same_bits_and_the_global_generator_is_left_alone(fitted):
    model, x, y = fitted
    torch.manual_seed(99)
    state = torch.get_rng_state()
    again = clone(model).fit(x, y)
    assert torch.equal(torch.get_rng_state(), state)
    assert numpy.array_equal(again.predict_proba(x), model.predict_proba(x)) and again.history_ == model.history_
    other = clone(model).set_params(random_state=1, max_epochs=1).fit(x, y)
    assert not numpy.array_equal(other.predict_proba(x), model.predict_proba(x))


def test_clones_pickles_pipelines_and_cross_validation(fitted):
    model, x, y = fitted
    assert not hasattr(clone(model), "model_") and clone(model).get_params() == model.get_params()
    assert set(model.get_params()) == set(inspect.signature(DBAClassifier).parameters)
    assert is_classifier(model)
    assert numpy.array_equal(pickle.loads(pickle.dumps(model)).predict_proba(x), model.predict_proba(x))
    quick = DBAClassifier(**{**TINY, "max_epochs": 6})
    pipeline = Pipeline([("scale", FunctionTransformer(lambda series: 3 * series)), ("dba", quick)])
    assert cross_val_score(pipeline, x, y, cv=2).mean() > 0.5
    assert len(cross_val_score(quick.set_params(max_epochs=1), ragged(x), y, cv=2)) == 2
    search = GridSearchCV(quick, {"layers": [1, 2]}, cv=2).fit(x, y)
    assert search.best_params_["layers"] in (1, 2)


@pytest.mark.parametrize("labels", [[True, False], [3, -7], [2.0, 5.0], ["ä", "b"]], ids=repr)
def test_labels_of_any_type_come_back(labels):
    x = bursts(cases=8)[0]
    y = numpy.array(labels * 4)
    predicted = DBAClassifier(**{**TINY, "max_epochs": 1}).fit(x, y).predict(x)
    assert predicted.dtype == y.dtype and set(predicted.tolist()) <= set(y.tolist())


def test_missing_values_are_interpolated():
    nan = numpy.nan
    one = numpy.array([[nan, 1], [2, nan], [nan, nan], [4, 7], [nan, nan]], dtype=numpy.float32)
    assert fill_missing(one).tolist() == [[2, 1], [2, 3], [3, 5], [4, 7], [4, 7]]
    standardise = Standardiser([one, numpy.array([[nan, 5]], dtype=numpy.float32)])
    (filled, without) = standardise([one, numpy.array([[nan, 5]], dtype=numpy.float32)])
    assert standardise.mean[0] == pytest.approx(3.0)  # of 2, 2, 3, 4, 4; what has no value counts for nothing
    assert without[0, 0] == 0 and standardise.mean[1] == pytest.approx(28 / 6)
    assert numpy.isfinite(filled).all()
    x, y = bursts()
    x[numpy.random.default_rng(3).random(x.shape) < 0.2] = nan
    with pytest.warns(UserWarning, match="missing values in 48 of 48 series interpolated"):
        model = DBAClassifier(**TINY).fit(x, y)
        assert model.score(x, y) > 0.8 and numpy.isfinite(model.predict_proba(x)).all()


def test_what_was_put_right_is_counted_and_said_once_a_call():
    quick = DBAClassifier(**{**TINY, "max_epochs": 1})
    x, y = bursts(cases=12)
    x = numpy.concatenate([x, x[:, :1] ** 2], axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        repairs = quick.fit(x, y).repairs_
        quick.predict(x)
    assert repairs.missing_values_interpolated == repairs.sequences_cut == 0 and repairs.constant_channels == []
    x[:, 2], x[0, 0, :5], x[1, 1] = 7, numpy.nan, numpy.nan
    with pytest.warns(UserWarning) as said:
        repairs = quick.fit(x, y).repairs_
    assert [str(one.message) for one in said] == [
        "DBAClassifier.fit: 25 missing values in 2 of 12 series interpolated; channels of a series without any value: "
        "1; constant channels (counted from 1), which standardising brings to 0: 3"]
    assert said[0].filename == __file__
    assert (repairs.sequences, repairs.missing_values_interpolated, repairs.series_with_missing_values,
            repairs.channels_without_values, repairs.constant_channels) == (12, 25, 2, 1, [3])
    for function in (quick.predict, quick.predict_proba):
        with pytest.warns(UserWarning, match="predict.*: 5 missing values in 1 of 1 series") as said:
            function(x[:1])
        assert len(said) == 1 and said[0].filename == __file__
    x[:, 1] = numpy.nan  # a channel of which nothing is known
    with pytest.warns(UserWarning, match="without any value: 12; constant channels .* 2, 3"):
        assert numpy.isfinite(quick.fit(x, y).predict_proba(x)).all()
    with pytest.raises(ValueError, match="every place of 12 series; look at how X was read"):
        quick.fit(numpy.full_like(x, numpy.nan), y)


def test_standardisation_is_of_the_training_data_and_constant_channels_stay():
    x = numpy.random.default_rng(0).normal([5, -3, 7], [2, 0.1, 0], (50, 3)).astype(numpy.float32)
    rows = numpy.concatenate(Standardiser([x[:20], x[20:]])([x[:20], x[20:]]))
    assert numpy.allclose(rows.mean(0), 0, atol=1e-4) and numpy.allclose(rows.std(0, ddof=1), [1, 1, 0], atol=1e-4)


def test_held_out_part_is_stratified_and_training_stops_early_with_the_best_weights():
    labels = numpy.repeat([0, 1, 2], [40, 20, 1])
    rest, held = hold_out(labels, 0.1, numpy.random.RandomState(0))
    assert sorted([*rest, *held]) == list(range(61))
    assert numpy.bincount(labels[held], minlength=3).tolist() == [4, 2, 0]
    x, _ = bursts()
    noise = numpy.random.default_rng(0).integers(0, 2, len(x))  # nothing to learn but by heart
    model = DBAClassifier(**{**TINY, "max_epochs": 200, "patience": 4}).fit(x, noise)
    assert model.n_iter_ == model.best_epoch_ + 4 < 200
    whole = DBAClassifier(**{**TINY, "max_epochs": 3, "validation_fraction": 0}).fit(x, noise)
    assert whole.n_iter_ == whole.best_epoch_ == 3 and set(whole.history_[0]) == {"epoch", "loss"}


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(capsys):
    x, y = bursts(cases=12)
    DBAClassifier(**{**TINY, "max_epochs": 3, "verbose": 1}).fit(x, y)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4 and lines[0].startswith("DBAClassifier: 1/3 epochs") and "\r" not in "".join(lines)
    DBAClassifier(**{**TINY, "max_epochs": 3}).fit(x, y)
    assert capsys.readouterr() == ("", "")

    class Terminal(list):
        isatty, write, flush = (lambda self: True), list.append, (lambda self: None)

    terminal = Terminal()
    progress = Progress(2, 1, terminal)
    progress.epoch(1, "loss 0.5")
    progress.close("done")
    assert terminal[0].startswith("\r[############............] 1/2") and "done" in "".join(terminal[1:])


def test_softmax_is_there_as_a_yardstick():
    x, y = bursts()
    assert DBAClassifier(**{**TINY, "method": "softmax"}).fit(ragged(x), y).score(ragged(x), y) > 0.8


def test_errors_say_what_came_and_what_to_do(fitted):
    model, x, y = fitted
    with pytest.raises(NotFittedError):
        DBAClassifier().predict(x)
    for bad, message in ((x[0, 0], "cases, channels, time"), (x[:0], "at least one series"), ("text", "got str"),
                         ([numpy.zeros((3, 2)), numpy.zeros((3, 4))], "got 4 in series 1"),
                         ([numpy.zeros((0, 2))], "leave empty series out"), ([["a", "b"]], "must hold numbers"),
                         ([numpy.full((3, 2), numpy.inf)], "infinity")):
        with pytest.raises(ValueError, match=message):
            as_series("fit", bad)
    with pytest.raises(ValueError, match="expecting 2 features"):
        model.predict(x[:, :1])
    for labels, message in ((y[:5], "one label for each of the 48"), (["same"] * 48, "at least two classes"),
                            (None, "one label for"), (["a", None] * 24, "series 1"),
                            (numpy.linspace(0, 1, 48), "continuous")):
        with pytest.raises(ValueError, match=message):
            DBAClassifier(**TINY).fit(x, labels)
    for wrong, message in (({"d": 17}, "take d = 18"), ({"heads": 0}, "heads"), ({"max_epochs": 1.5}, "integer"),
                           ({"dropout": 1}, "below 1"), ({"learning_rate": 0}, "above 0"),
                           ({"method": "magic"}, "softmax"), ({"device": "abacus"}, "cuda"),
                           ({"validation_fraction": -1}, "at least 0")):
        with pytest.raises(ValueError, match=message):
            DBAClassifier(**{**TINY, **wrong}).fit(x, y)
    with pytest.raises(RuntimeError, match="lower learning_rate"):
        DBAClassifier(**{**TINY, "learning_rate": 1e30}).fit(x, y)
