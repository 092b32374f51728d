"""Members of the zoo against the models of Hugging Face's transformers, with the same weights.

docs/zoo.md says at which settings they agree and where a model does something else; tests/python/requirements.txt has
the packages. Reformer's model is not here: its tokens see other buckets too, and its first chunk sees the last.
"""

import pytest
import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from zoo_comparison import D, HEADS, expect_same, made, package, tokens


def model(name):
    return package(f"transformers.models.{name}.modeling_{name}")


def settings(**more):
    return {"hidden_size": D, "num_attention_heads": HEADS, "attention_probs_dropout_prob": 0.0, **more}


def give_projections(layer, theirs):
    for name in ("query", "key", "value"):
        getattr(theirs, name).load_state_dict(getattr(layer, f"w_{name[0]}").state_dict())


def padding_behind(lengths):
    """(B, n), true behind each sequence; None where there is no padding."""
    longest = max(lengths)
    return None if min(lengths) == longest else torch.arange(longest) >= torch.tensor(lengths)[:, None]


def of_each_length(function, x, lengths):
    """The function of a batch, where all have one length; else of each sequence alone, as a padded batch."""
    if min(lengths) == max(lengths):
        return function(x)
    rows = [function(sequence[None, :length])[0] for sequence, length in zip(x, lengths, strict=True)]
    return pad_sequence(rows, batch_first=True)


@pytest.mark.parametrize("lengths", [(5, 5), (24, 24), (40, 18), (23, 2)])
@pytest.mark.parametrize("global_tokens", [0, 1, 3])
def test_longformer(global_tokens, lengths, monkeypatch):
    longformer = model("longformer")
    # It would take the softmax in float32, whatever the tokens are.
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda scores, dim, dtype: scores.softmax(dim))
    window = 8
    layer = made("longformer", window=window, globals=global_tokens)
    config = longformer.LongformerConfig(**settings(attention_window=[window]))
    theirs = longformer.LongformerSelfAttention(config, layer_id=0).double()
    give_projections(layer, theirs)
    if global_tokens > 0:
        for name in ("query", "key", "value"):
            getattr(theirs, f"{name}_global").load_state_dict(getattr(layer, f"global_{name[0]}").state_dict())
    longest = max(lengths)
    x = tokens(len(lengths), longest)
    room = -longest % window  # it takes multiples of the window
    place = torch.arange(longest + room)
    absent = place >= torch.tensor(lengths)[:, None]
    is_global = (place < global_tokens) & ~absent
    mask = 10000 * (is_global.double() - absent.double())
    mixed = theirs(pad(x, (0, 0, 0, room)), mask, is_index_masked=absent, is_index_global_attn=is_global,
                   is_global_attn=global_tokens > 0)[0]
    expect_same(layer, x, layer.w_o(mixed[:, :longest]), padding_behind(lengths))


def random_blocks(layer, blocks, size):
    """(H, blocks − 2, r): the blocks outside the window that each block between the ends sees. `layer` loses its
    weights: with equal scores, the blocks of queries that see a block are those that its values reach."""
    state = {name: torch.zeros_like(value) for name, value in layer.state_dict().items()}
    layer.load_state_dict(state | {name: torch.eye(D, dtype=torch.float64) for name in ("w_v.weight", "w_o.weight")})
    one_has_values = torch.eye(blocks, dtype=torch.float64).repeat_interleave(size, 1)  # a sequence for each block
    y = layer(one_has_values[:, :, None].expand(-1, -1, D))[0]
    sees = y[:, ::size, :: D // HEADS].permute(2, 1, 0) > 0  # (H, blocks of queries, blocks of keys)
    own = torch.arange(blocks)
    in_window = (own[:, None] - own).abs() <= 1
    assert sees[:, in_window].all() and sees[:, [0, -1]].all() and sees[:, :, [0, -1]].all()
    return (sees & ~in_window)[:, 1:-1, 1:-1].nonzero()[:, 2].view(HEADS, blocks - 2, -1) + 1


@pytest.mark.parametrize("random, lengths", [(1, (24, 24)), (1, (36, 31)), (2, (30, 30)), (2, (37, 42))])
def test_bigbird(random, lengths):
    big_bird = model("big_bird")
    size = 4
    options = {"block": size, "window": 3, "random": random}

    class WithOurBlocks(big_bird.BigBirdBlockSparseAttention):
        """The layer's own random blocks; the class would draw some in training, else take the first block for all."""

        def _bigbird_block_rand_mask_with_head(self, from_seq_length, **_):
            chosen = random_blocks(made("bigbird", **options), from_seq_length // size, size)
            assert chosen.size(2) == random
            return chosen.numpy()

    layer = made("bigbird", **options)
    config = big_bird.BigBirdConfig(**settings(block_size=size, num_random_blocks=random))
    theirs = WithOurBlocks(config, seed=0).double()
    give_projections(layer, theirs)

    def mixed(batch):
        length = batch.size(1)
        room = -length % size  # it takes multiples of a block, and has the last block of the batch for the last of each
        real = pad(torch.ones(batch.shape[:2], dtype=torch.float64), (0, room))
        blocked, band, rows, columns = big_bird.BigBirdModel.create_masks_for_block_sparse_attn(real, size)
        return theirs(pad(batch, (0, 0, 0, room)), band, rows, columns, blocked, blocked)[0][:, :length]

    x = tokens(2, max(lengths))
    expect_same(layer, x, layer.w_o(of_each_length(mixed, x, lengths)), padding_behind(lengths))


@pytest.mark.parametrize("lengths", [(1, 1), (12, 12), (12, 7), (5, 16)])
@pytest.mark.parametrize("by_axis", [False, True])
def test_fnet(by_axis, lengths):
    fnet = model("fnet")
    # Beyond 4,096 places the TPU's way is a transform for each axis, else products with matrices in complex64.
    config = fnet.FNetConfig(use_tpu_fourier_optimizations=by_axis, max_position_embeddings=8192)
    theirs = fnet.FNetBasicFourierTransform(config)
    x = tokens(2, max(lengths))
    expect_same(made("fnet"), x, of_each_length(lambda batch: theirs(batch)[0], x, lengths), padding_behind(lengths))


@pytest.mark.parametrize("lengths", [(8, 8), (20, 20), (12, 8), (8, 36)])
def test_nystromformer(lengths):
    nystromformer = model("nystromformer")
    layer = made("nystromformer", landmarks=4, conv=5)
    config = nystromformer.NystromformerConfig(**settings(num_landmarks=4, conv_kernel_size=5))
    theirs = nystromformer.NystromformerSelfAttention(config).double()
    theirs.init_option = "exact"  # a norm for every sequence and head; reading it from the configuration fails
    give_projections(layer, theirs)
    theirs.conv.weight.data.copy_(layer.conv)

    def mixed(batch):
        theirs.seq_len = batch.size(1)
        return theirs(batch)[0]

    x = tokens(2, max(lengths))
    expect_same(layer, x, layer.w_o(of_each_length(mixed, x, lengths)), padding_behind(lengths))


@pytest.mark.parametrize("lengths", [(1, 1), (13, 13), (13, 6)])
@pytest.mark.parametrize("tau", [1, 8])
def test_yoso(tau, lengths, monkeypatch):
    yoso = model("yoso")
    monkeypatch.setattr(yoso, "lsh_cumulation", "not called")  # else it compiles kernels where there is a GPU
    layer = made("yoso", kind="expectation", tau=tau)
    config = yoso.YosoConfig(**settings(use_expectation=True, hash_code_len=tau, conv_window=None))
    theirs = yoso.YosoSelfAttention(config).double()
    give_projections(layer, theirs)
    x, padding = tokens(2, max(lengths)), padding_behind(lengths)
    absent = torch.zeros(x.shape[:2], dtype=torch.bool) if padding is None else padding
    expect_same(layer, x, layer.w_o(theirs(x, -10000.0 * absent)[0]), padding)
