"""What a model knows besides its weights, and prediction from raw examples."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .encoding import Encoding
from .repairs import Repairs
from .yaml_text import Settings


class Trained:
    """Mixed into the models: `encoding` says how examples become numbers, `settings` is the whole configuration of the
    run; both come with a loaded model."""

    encoding: Encoding | None = None
    settings: Settings | None = None

    @property
    def labels(self) -> list[str]:
        """Names of the classes, in the order of the logits."""
        return self.known_encoding().labels

    def known_encoding(self) -> Encoding:
        """`encoding`, or ValueError where the model has none."""
        if self.encoding is None:
            raise ValueError(f"dba.models.{type(self).__name__}: this model does not know how examples become numbers; "
                             "load a trained one with dba.load, or set its `encoding`")
        return self.encoding

    def logits(self, examples: Sequence[Any], batch_size: int | None = None) -> Tensor:
        """(examples, classes) float32, from raw examples: texts, pairs of texts, or arrays (time, channels), without
        dropout and gradients. Batches are as large as in training unless `batch_size` says otherwise. UserWarning, as
        `dba predict` says it, where values of series are missing or sequences are cut."""
        return self._logits(examples, batch_size)

    def _logits(self, examples: Sequence[Any], batch_size: int | None) -> Tensor:
        """Called by what a user calls, whose line a warning names."""
        encoding = self.known_encoding()
        if isinstance(examples, str | bytes):
            raise ValueError(f"dba.models.{type(self).__name__}: examples must be a list of them, got one text; put it "
                             "into a list")
        size = batch_size or (self.settings or {}).get("batch", {}).get("size", 32)
        assert isinstance(self, nn.Module)
        device = next(self.parameters()).device
        repairs = Repairs()
        was_training = self.training
        self.eval()
        try:
            with torch.no_grad():
                parts = [self(*encoding.batch(examples[i : i + size], device, repairs)).float()
                         for i in range(0, len(examples), size)]
        finally:
            self.train(was_training)
        if sentence := repairs.sentence():
            warnings.warn(f"dba.models.{type(self).__name__}: {sentence}", UserWarning, stacklevel=3)
        return torch.cat(parts) if parts else torch.empty(0, len(encoding.labels), device=device)

    def predict_proba(self, examples: Sequence[Any], batch_size: int | None = None) -> Tensor:
        """(examples, classes) probabilities."""
        return self._logits(examples, batch_size).softmax(1)

    def predict(self, examples: Sequence[Any], batch_size: int | None = None) -> list[str]:
        """The label of each example."""
        labels = self.labels
        return [labels[index] for index in self._logits(examples, batch_size).argmax(1).tolist()]

    def save(self, path: str | pathlib.Path) -> None:
        """Writes a safetensors file that `dba.load` and the program (`dba predict`, `dba evaluate`) read. Without an
        `encoding` it holds the weights and sizes alone, which only `dba.models.load_weights` reads."""
        from .run import save

        save(self, path)
