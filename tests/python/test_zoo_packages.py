"""Members of the zoo against packages that implement the same definition, with the same weights.

docs/zoo.md says at which settings they agree and where a package does something else. The packages are needed for these
tests alone (tests/python/requirements.txt); a test whose package is not installed is skipped.
"""

import importlib
import sys
import types

import pytest
import torch
from zoo_comparison import D, HEADS, expect_same, made, package, tokens


def ensure_distutils(replace):
    """performer-pytorch compares torch's version by distutils, which Python has no longer from 3.12 on."""
    try:
        import distutils.version  # noqa: F401
    except ImportError:
        version = types.ModuleType("distutils.version")
        version.LooseVersion = torch.torch_version.TorchVersion
        for name, module in (("distutils", types.ModuleType("distutils")), ("distutils.version", version)):
            replace.setitem(sys.modules, name, module)


def by_head(rows, heads=HEADS):
    """(B, n, H·w) → (B, H, n, w)."""
    return rows.unflatten(2, (heads, -1)).transpose(1, 2)


def joined(heads):
    """(B, H, n, w) → (B, n, H·w)."""
    return heads.transpose(1, 2).flatten(2)


def projected(layer, x, heads=HEADS):
    return [by_head(linear(x), heads) for linear in (layer.w_q, layer.w_k, layer.w_v)]


class Returning(torch.nn.Module):
    """A module that has its answer already."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, *_, **__):
        return self.answer


@pytest.mark.parametrize("length", [1, 7, 12])
def test_linformer(length):
    linformer = package("linformer")
    layer = made("linformer", k=3, share="heads", max_length=12)
    theirs = linformer.LinformerSelfAttention(D, 12, k=3, heads=HEADS).double()
    with torch.no_grad():
        for mine, other in ((layer.w_q, theirs.to_q), (layer.w_k, theirs.to_k), (layer.w_v, theirs.to_v)):
            other.weight.copy_(mine.weight)
            mine.bias.zero_()
        theirs.to_out.load_state_dict(layer.w_o.state_dict())
        theirs.proj_k.copy_(layer.e[0].t())
        theirs.proj_v.copy_(layer.f[0].t())
    x = tokens(2, length)
    expect_same(layer, x, theirs(x))


@pytest.mark.parametrize("kernel", ["softmax", "relu"])
def test_performer(kernel, monkeypatch):
    ensure_distutils(monkeypatch)
    performer = package("performer_pytorch")
    layer = made("performer", features=20, kernel=kernel)
    theirs = performer.FastAttention(D // HEADS, nb_features=20, generalized_attention=kernel == "relu").double()
    theirs.projection_matrix.copy_(layer.features)
    x = tokens(2, 13)
    expect_same(layer, x, layer.w_o(joined(theirs(*projected(layer, x)))))


def test_performers_package_needs_no_distutils(monkeypatch):
    ensure_distutils(monkeypatch)
    package("performer_pytorch")
    for name in [name for name in sys.modules if name.split(".")[0] == "performer_pytorch"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("distutils", "distutils.version"):
        monkeypatch.setitem(sys.modules, name, None)
    ensure_distutils(monkeypatch)
    assert importlib.import_module("performer_pytorch").FastAttention


@pytest.mark.parametrize("batch, heads, landmarks", [(1, 1, 4), (1, 1, 12)])
def test_nystromformer(batch, heads, landmarks):
    nystrom = package("nystrom_attention")
    layer = made("nystromformer", heads, landmarks=landmarks, conv=5)
    theirs = nystrom.NystromAttention(D, D // heads, heads, landmarks, residual_conv_kernel=5).double()
    with torch.no_grad():
        theirs.to_qkv.weight.copy_(torch.cat([layer.w_q.weight, layer.w_k.weight, layer.w_v.weight]))
        for linear in (layer.w_q, layer.w_k, layer.w_v):
            linear.bias.zero_()
        theirs.to_out[0].load_state_dict(layer.w_o.state_dict())
        theirs.res_conv.weight.copy_(layer.conv)
    x = tokens(batch, 12)
    expect_same(layer, x, theirs(x))


@pytest.mark.parametrize("length", [5, 8, 19])
def test_local_attention(length):
    local = package("local_attention")
    layer = made("local", block=8)
    theirs = local.LocalAttention(8, look_backward=0, look_forward=0, autopad=True, use_rotary_pos_emb=False)
    x = tokens(2, length)
    real = torch.ones(2, length, dtype=torch.bool)  # without a mask its own padding would be attended to
    expect_same(layer, x, layer.w_o(joined(theirs(*projected(layer, x), mask=real))))


@pytest.mark.parametrize("length", [5, 8, 30])
def test_longformers_band_is_the_exact_window_of_local_attention(length):
    local = package("local_attention")
    layer = made("longformer", window=8, globals=0)
    theirs = local.LocalAttention(4, look_backward=1, look_forward=1, autopad=True, exact_windowsize=True,
                                  use_rotary_pos_emb=False)
    x = tokens(2, length)
    real = torch.ones(2, length, dtype=torch.bool)
    expect_same(layer, x, layer.w_o(joined(theirs(*projected(layer, x), mask=real))))


@pytest.mark.parametrize("rounds", [1, 3])
def test_reformer(rounds):
    reformer = package("reformer_pytorch")
    chunk, length = 4, 24
    layer = made("reformer", chunk=chunk, buckets=length // chunk, rounds=rounds)

    class WithOurRotations(reformer.LSHAttention):
        """The layer's own hashes; the class would draw new ones at every call."""

        def hash_vectors(self, n_buckets, vectors, **_):
            rotated = torch.einsum("bhtf,rhfi->bhrti", vectors.unflatten(0, (-1, HEADS)), layer.rotations)
            buckets = torch.cat([rotated, -rotated], -1).argmax(-1)  # (B, H, rounds, n)
            return (buckets + n_buckets * torch.arange(rounds)[:, None]).flatten(2).flatten(0, 1)

    theirs = WithOurRotations(bucket_size=chunk, n_hashes=rounds, attend_across_buckets=False,
                              allow_duplicate_attention=False)
    x = tokens(2, length)
    mixed = theirs(*(by_head(linear(x)).flatten(0, 1) for linear in (layer.w_qk, layer.w_v)))[0]
    expect_same(layer, x, layer.w_o(joined(mixed.unflatten(0, (-1, HEADS)))))


def test_sinkhorn_attention_over_sorted_blocks():
    sinkhorn = package("sinkhorn_transformer.sinkhorn_transformer")
    block, length, iterations = 4, 12, 5
    layer = made("sinkhorn", block=block, iterations=iterations, max_length=length)
    layer.w_v.load_state_dict(layer.w_k.state_dict())  # it takes sorted keys for sorted values
    theirs = sinkhorn.SinkhornAttention(block, D, D // HEADS, HEADS, length)
    x = tokens(2, length)
    # Its sort network is another one; its normalisation sorts by the scores of ours.
    scores = layer.w_p(layer.w_b(x.unflatten(1, (-1, block)).sum(2)).relu()).unflatten(2, (HEADS, -1)).transpose(1, 2)
    order = sinkhorn.sinkhorn_sorting_operator(scores.flatten(0, 1), iterations)
    theirs.sort_net = Returning(order)
    expect_same(layer, x, layer.w_o(joined(theirs(*projected(layer, x)))))
