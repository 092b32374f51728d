"""How parameters are drawn at first."""

from __future__ import annotations

from torch import nn

from ..layer import DBALayer, Slots, check_choice
from .attention import SoftmaxSelfAttention, ZooSelfAttention
from .config import CHOICES
from .embedding import PositionEmbedding, TokenEmbedding
from .pooling import Head

BERT_DEVIATION = 0.02
POSITION_BOUND = 0.02


def initialise(module: nn.Module, scheme: str) -> None:
    """Draws all parameters of `module` and of the modules in it anew. Norms start at the identity, Z is N(0, 1/d) and R
    is N(0, 1/e); for the rest:

    luna           linear layers inside attentions Xavier-uniform with gain 1/√2, those called `w_o` and the head with
                   gain 1, all of these with biases 0; feed-forward layers as nn.Linear draws them; token and position
                   embeddings N(0, 1/d)
    bert           linear layers, embeddings and Z N(0, 0.02²), biases 0
    torch_default  every linear layer as nn.Linear draws it, token embeddings N(0, 1/d), learned positions
                   U(−0.02, 0.02)
    """
    check_choice("models.initialise", "scheme", scheme, CHOICES["initialise"])
    _visit(module, "", "elsewhere", scheme)


def _visit(module: nn.Module, name: str, place: str, scheme: str) -> None:
    if isinstance(module, nn.Linear):
        _draw_linear(module, name, place, scheme)
        return
    if hasattr(module, "reset_parameters") and not any(True for _ in module.children()):
        module.reset_parameters()
    if isinstance(module, DBALayer):
        module._reset_width()
    if isinstance(module, Slots):
        module.reset_parameters()
    if scheme == "bert":
        if isinstance(module, TokenEmbedding | PositionEmbedding) and hasattr(module, "weight"):
            nn.init.normal_(module.weight, std=BERT_DEVIATION)
        if isinstance(module, Slots):
            nn.init.normal_(module.z, std=BERT_DEVIATION)
    elif scheme == "torch_default" and isinstance(module, PositionEmbedding) and hasattr(module, "weight"):
        nn.init.uniform_(module.weight, -POSITION_BOUND, POSITION_BOUND)
    if isinstance(module, DBALayer | SoftmaxSelfAttention | ZooSelfAttention):
        place = "attention"
    elif isinstance(module, Head):
        place = "head"
    for child_name, child in module.named_children():
        _visit(child, child_name, place, scheme)


def _draw_linear(linear: nn.Linear, name: str, place: str, scheme: str) -> None:
    if scheme == "bert":
        nn.init.normal_(linear.weight, std=BERT_DEVIATION)
    elif scheme == "luna" and place != "elsewhere":
        projects_in = place == "attention" and name != "w_o"
        nn.init.xavier_uniform_(linear.weight, 2**-0.5 if projects_in else 1.0)
    else:
        linear.reset_parameters()
        return
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
