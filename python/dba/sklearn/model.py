"""The module that DBAClassifier trains."""

from __future__ import annotations

from typing import Any

from ..models import Classifier, ModelConfig


def make_model(estimator: Any, channels: int, classes: int) -> Classifier:
    """Sinusoidal positions and the mean over time take series of any length, longer ones than in training too."""
    config = ModelConfig(
        method=estimator.method,
        d=estimator.d,
        heads=estimator.heads,
        layers=estimator.layers,
        d_ffn=estimator.d_ffn,
        d_p=estimator.d_p,
        d_in=estimator.heads * -(-estimator.d_in // estimator.heads),
        dropout=estimator.dropout,
        attention_dropout=estimator.dropout,
        position="sinusoidal",
        pooling="mean",
        head="mlp",
    )
    return Classifier(config, classes, features=channels)
