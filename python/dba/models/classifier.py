"""Classifiers of sequences, and of pairs of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..sequences import Sequences, as_rows
from .config import ModelConfig
from .embedding import FeatureEmbedding, PositionEmbedding, TokenEmbedding
from .encoder import Encoder, TokenNorm
from .initialise import initialise
from .pooling import Head, Pooling
from .trained import Trained


class Backbone(nn.Module):
    """From raw sequences to one vector each: embedding, positions, encoder, pooling."""

    def __init__(self, config: ModelConfig, *, vocabulary: int = 0, features: int = 0, max_length: int = 0) -> None:
        super().__init__()
        if (vocabulary > 0) == (features > 0):
            raise ValueError(f"dba.models.Backbone: either vocabulary or features must be positive, and not both, got "
                             f"vocabulary {vocabulary} and features {features}")
        self.config = config
        if vocabulary > 0:
            self.tokens = TokenEmbedding(vocabulary, config.d)
        else:
            self.features = FeatureEmbedding(features, config.d, config.scale_features)
        self.takes_tokens = vocabulary > 0
        learned = config.position != "none"
        self.positions = PositionEmbedding(config.d, config.position, max_length) if learned else None
        self.embedding_norm = TokenNorm(config.d) if config.embedding_norm else None
        self.encoder = Encoder(config, max_length)
        self.pooling = Pooling(config.d, config.pooling, max_length)

    def forward(self, input: Tensor, sequences: Sequences | None = None, positions: Tensor | None = None) -> Tensor:
        """Tokens (N) or (B, n), or features (N, f) or (B, n, f). Without `sequences` a plain batch. positions (N): of
        the tokens, where parts of the sequences were left out. Returns (B, w)."""
        dimensions = 2 if self.takes_tokens else 3
        rows, sequences = as_rows("models.Backbone", "input", input, sequences, dimensions)
        x = (self.tokens if self.takes_tokens else self.features)(rows, sequences.row_mask())
        if self.positions is not None:
            x = self.positions(x, sequences, positions)
        if self.embedding_norm is not None:
            x = self.embedding_norm.in_one_pass(x)
        x = self.encoder(functional.dropout(x, self.config.dropout, self.training), sequences)
        if self.config.output_activation:
            x = functional.dropout(functional.gelu(x), self.config.dropout, self.training)
        return self.pooling(x, sequences)


class _BackboneAndHead(Trained, nn.Module):
    """What the models share; the head reads `vectors` vectors of the backbone."""

    def __init__(
        self, config: ModelConfig, classes: int, vectors: int, *, vocabulary: int, features: int, max_length: int
    ) -> None:
        super().__init__()
        self.config, self.classes, self.max_length = config, classes, max_length
        self.backbone = Backbone(config, vocabulary=vocabulary, features=features, max_length=max_length)
        width = vectors * self.backbone.pooling.width
        self.head = Head(width, classes, config.head, config.head_hidden or config.d_ffn)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters as `config.initialise` says."""
        initialise(self, self.config.initialise)


class Classifier(_BackboneAndHead):
    """Logits for whole sequences.

    >>> model = dba.models.Classifier(dba.models.ModelConfig(d=32, d_in=8), classes=3, features=2, max_length=50)
    >>> model(torch.randn(4, 50, 2)).shape
    torch.Size([4, 3])
    """

    def __init__(
        self, config: ModelConfig, classes: int, *, vocabulary: int = 0, features: int = 0, max_length: int = 0
    ) -> None:
        super().__init__(config, classes, 1, vocabulary=vocabulary, features=features, max_length=max_length)

    def forward(self, input: Tensor, sequences: Sequences | None = None, positions: Tensor | None = None) -> Tensor:
        """Tokens (N) or (B, n), or features (N, f) or (B, n, f); packed or padded ones with `sequences`; positions (N)
        where symbols are left out. Returns logits (B, classes)."""
        return self.head(self.backbone(input, sequences, positions))


class DualEncoder(_BackboneAndHead):
    """Logits for pairs of documents. Both pass the same backbone, each by itself."""

    def __init__(
        self, config: ModelConfig, classes: int, *, vocabulary: int = 0, features: int = 0, max_length: int = 0
    ) -> None:
        vectors = 4 if config.pair_features == "nli" else 2
        super().__init__(config, classes, vectors, vocabulary=vocabulary, features=features, max_length=max_length)

    def forward(
        self, input_1: Tensor, input_2: Tensor, sequences_1: Sequences | None = None,
        sequences_2: Sequences | None = None, positions_1: Tensor | None = None, positions_2: Tensor | None = None,
    ) -> Tensor:
        """Inputs as for Classifier, B sequences each; their lengths need not agree. Returns (B, classes)."""
        a = self.backbone(input_1, sequences_1, positions_1)
        b = self.backbone(input_2, sequences_2, positions_2)
        if a.shape[0] != b.shape[0]:
            raise ValueError(f"dba.models.DualEncoder: input_2 must have as many documents as input_1, expected "
                             f"{a.shape[0]}, got {b.shape[0]}")
        parts = [a, b, a * b, a - b] if self.config.pair_features == "nli" else [b, a]
        return self.head(torch.cat(parts, 1))
