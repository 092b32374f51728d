"""DBAClassifier: a DBA encoder with mean pooling, fitted to time series in the convention of scikit-learn."""

from __future__ import annotations

import copy
import warnings
from numbers import Integral, Real
from typing import Any

import numpy
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from ..models.repairs import Repairs, repairs_of
from . import training
from .model import make_model
from .series import Series, Standardiser, as_series

_PREDICTED_AT_ONCE = 64  # series


class DBAClassifier(ClassifierMixin, BaseEstimator):
    """Classifies time series of any lengths with dynamic bilinear low-rank attention.

    Series are standardised per channel by the statistics of the training data, missing values (NaN) are interpolated;
    a UserWarning counts them, and the channels that are constant in the training data.
    Batches are packed: series of different lengths lie one behind the other, nothing is padded, and the time of a layer
    grows linearly with their length. A part of the training data is held out; training stops when its loss no longer
    falls, and the best weights are restored.

    Parameters
    ----------
    d : width of the tokens, divisible by heads.
    heads, layers, d_ffn : of the encoder.
    d_p : slots per head, the length that a series is compressed to.
    d_in : width of the compressed queries and keys over all heads.
    method : "dba", or "softmax" for the ordinary attention as a yardstick.
    dropout : everywhere in the encoder.
    max_epochs : passes over the training data, at most.
    patience : epochs without a smaller loss on the held-out part before training stops.
    validation_fraction : the held-out part; 0 trains on everything for all of max_epochs.
    batch_size, learning_rate, weight_decay : of AdamW; the rate warms up and falls along a cosine.
    device : "cpu", "cuda", or "auto" for the GPU where there is one.
    random_state : an integer makes the fit repeatable bit by bit on the same machine with as many threads.
    verbose : 0 silent, 1 a progress bar (plain lines where there is no terminal), 2 a line for every epoch.

    Attributes
    ----------
    classes_ : (classes) the labels. n_features_in_ : channels.
    repairs_ : what was put right in the training data, a dba.models.Repairs: missing_values_interpolated,
        series_with_missing_values, channels_without_values (pairs of a series and a channel), constant_channels
        (counted from 1), sequences_cut (0: series of any length are taken).
    model_ : the module. history_ : a dictionary per epoch. best_epoch_ : whose weights the model has. n_iter_ : epochs.
    """

    def __init__(self, d: int = 64, heads: int = 4, layers: int = 2, d_ffn: int = 128, d_p: int = 16, d_in: int = 24,
                 method: str = "dba", dropout: float = 0.1, max_epochs: int = 100, patience: int = 20,
                 validation_fraction: float = 0.15, batch_size: int = 16, learning_rate: float = 1e-3,
                 weight_decay: float = 1e-2, device: str = "cpu",
                 random_state: int | numpy.random.RandomState | None = None, verbose: int = 0) -> None:
        self.d = d
        self.heads = heads
        self.layers = layers
        self.d_ffn = d_ffn
        self.d_p = d_p
        self.d_in = d_in
        self.method = method
        self.dropout = dropout
        self.max_epochs = max_epochs
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> DBAClassifier:
        """X: an array (cases, channels, time) or (cases, time), or a list of (time, channels) of different lengths.
        y (cases): labels of any type that can be sorted. Returns self."""
        self._check_parameters()
        device = self._device()
        series = as_series("DBAClassifier.fit", X)
        self.classes_, labels = self._encode_labels(y, len(series))
        self.n_features_in_ = series[0].shape[1]
        self.repairs_ = self._count_missing(series)
        self.standardiser_ = Standardiser(series)
        series = self.standardiser_(series)
        # Any other channel has a deviation of 1.
        constant = numpy.logical_and.reduce([(one == 0).all(axis=0) for one in series])
        self.repairs_.constant_channels = [int(channel) + 1 for channel in numpy.flatnonzero(constant)]
        if sentence := self.repairs_.sentence():
            warnings.warn(f"DBAClassifier.fit: {sentence}", UserWarning, stacklevel=2)
        random = check_random_state(self.random_state)
        rest, held = numpy.arange(len(series)), numpy.arange(0)
        if self.validation_fraction > 0:
            rest, held = training.hold_out(labels, self.validation_fraction, random)
        settings = training.Settings(self.max_epochs, self.patience, self.batch_size, self.learning_rate,
                                     self.weight_decay, self.verbose)
        gpus = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=gpus), torch.enable_grad():
            torch.manual_seed(int(random.randint(2**31 - 1)))
            self.model_ = make_model(self, self.n_features_in_, len(self.classes_)).to(device)
            result = training.train(self.model_, [series[i] for i in rest], labels[rest], [series[i] for i in held],
                                    labels[held], settings, random, device)
            self.model_.to("cpu")
        self.history_, self.best_epoch_ = result.history, result.best_epoch
        self.n_iter_ = len(result.history)
        return self

    def predict_proba(self, X: Any) -> numpy.ndarray:
        """(cases, classes) probabilities, in the order of classes_."""
        return self._logits("predict_proba", X).softmax(1).numpy()

    def predict(self, X: Any) -> numpy.ndarray:
        """(cases) labels."""
        chosen = self._logits("predict", X).argmax(1).numpy()
        return self.classes_[chosen]

    def _logits(self, function: str, X: Any) -> torch.Tensor:
        """(cases, classes) on the CPU."""
        check_is_fitted(self, "model_")
        series = as_series(f"DBAClassifier.{function}", X)
        if series[0].shape[1] != self.n_features_in_:
            raise ValueError(f"DBAClassifier.{function}: X has {series[0].shape[1]} features, but DBAClassifier is "
                             f"expecting {self.n_features_in_} features as input: the channels it was fitted with. "
                             "Arrays stand as (cases, channels, time), lists hold (time, channels)")
        if sentence := repairs_of(series).sentence():
            warnings.warn(f"DBAClassifier.{function}: {sentence}", UserWarning, stacklevel=3)
        device = self._device()
        # The fitted module stays on the CPU, so that it can be pickled here and read anywhere.
        model = self.model_ if device.type == "cpu" else copy.deepcopy(self.model_).to(device)
        return training.logits_of(model, self.standardiser_(series), max(self.batch_size, _PREDICTED_AT_ONCE), device)

    def _count_missing(self, series: Series) -> Repairs:
        repairs = repairs_of(series)
        if repairs.missing_values_interpolated == sum(one.size for one in series):
            raise ValueError("DBAClassifier.fit: X must hold numbers to learn from, got NaN, a missing value, in every "
                             f"place of {len(series):,} series; look at how X was read")
        return repairs

    def _encode_labels(self, y: Any, cases: int) -> tuple[numpy.ndarray, numpy.ndarray]:
        if y is None:
            raise ValueError("DBAClassifier.fit: requires y to be passed, but the target y is None; give one label for "
                             "each series")
        y = column_or_1d(y, warn=True)
        if len(y) != cases:
            raise ValueError(f"DBAClassifier.fit: y must hold one label for each of the {cases} series of X, got "
                             f"{len(y)}; an array X stands as (cases, channels, time)")
        missing = [index for index, label in enumerate(y) if label is None or label != label]
        if missing:
            raise ValueError(f"DBAClassifier.fit: y must hold a label for every series, got none (None or NaN) for "
                             f"series {missing[0]}; leave such series out")
        check_classification_targets(y)
        try:
            classes, labels = numpy.unique(y, return_inverse=True)
        except TypeError as reason:
            raise TypeError(f"DBAClassifier.fit: the labels of y must be of one type, so that they can be sorted: "
                            f"{reason}; turn them into text first") from reason
        if len(classes) < 2:
            raise ValueError(f"DBAClassifier.fit: y must hold at least two classes, got one class: {classes[0]!r}")
        return classes, labels.astype(numpy.int64)

    def _device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError('DBAClassifier: device "cuda" needs a GPU that torch can use, and finds none; set device '
                             'to "cpu" (set_params works on a fitted estimator too)')
        return torch.device(self.device)

    def _check_parameters(self) -> None:
        whole = {"d": 1, "heads": 1, "layers": 1, "d_ffn": 1, "d_p": 1, "d_in": 1, "max_epochs": 1, "patience": 1,
                 "batch_size": 1, "verbose": 0}
        for name, least in whole.items():
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < least:
                raise ValueError(f"DBAClassifier: {name} must be an integer of at least {least}, got {value!r}")
        if self.d % self.heads != 0:
            raise ValueError(f"DBAClassifier: d must be divisible by heads, got {self.d} and {self.heads}; take d = "
                             f"{self.heads * -(-self.d // self.heads)}")
        for name, below in {"dropout": 1.0, "validation_fraction": 1.0, "weight_decay": float("inf")}.items():
            value = getattr(self, name)
            if not isinstance(value, Real) or not 0 <= value < below:
                raise ValueError(f"DBAClassifier: {name} must be a number of at least 0 and below {below}, got "
                                 f"{value!r}")
        if not isinstance(self.learning_rate, Real) or not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"DBAClassifier: learning_rate must be a number above 0, got {self.learning_rate!r}")
        for name, choices in {"method": ("dba", "softmax"), "device": ("cpu", "cuda", "auto")}.items():
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"DBAClassifier: {name} must be one of {', '.join(choices)}, got {value!r}")
