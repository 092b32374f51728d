"""The zoo by name in Python: every member runs, learns, ignores padding and does what its record says."""

import copy
import pathlib
import pickle
import sys

import pytest
import torch
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import dba  # noqa: E402

D, HEADS, LONGEST = 16, 2, 40
# Small enough that sequences of forty tokens have several blocks, chunks and segments.
OPTIONS = {
    "local": {"block": 8},
    "sparse": {"summary": 2},
    "longformer": {"window": 8, "globals": 2},
    "bigbird": {"block": 4, "random": 1},
    "linformer": {"k": 5, "max_length": LONGEST},
    "reformer": {"chunk": 4, "buckets": 4},
    "sinkhorn": {"block": 8, "max_length": LONGEST},
    "synthesizer": {"kind": "mixed", "max_length": LONGEST},
    "performer": {"features": 32},
    "nystromformer": {"landmarks": 5, "conv": 3},
    "yoso": {"tau": 3, "hashes": 4},
    "scatterbrain": {"window": 8, "features": 8},
    "pixelfly": {"block": 4, "butterfly": 4, "rank": 3},
    "luna": {"d_p": 4, "mask_slots": True},
    "dba": {"d_p": 4, "d_in": 8},
}
NAMES = dba.zoo.names()


def made(name, **more):
    torch.manual_seed(2)
    return dba.zoo.make(name, D, HEADS, dtype=torch.float64, **OPTIONS.get(name, {}), **more)


def tokens(*shape, seed=3):
    return torch.randn(*shape, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_all_twenty_are_there_with_their_records():
    assert len(NAMES) == 20 and len(set(NAMES)) == 20 and set(OPTIONS) <= set(NAMES)
    performer = dba.zoo.member("performer")
    assert performer.title == "Performer" and performer.capabilities.growth == "linear" and performer.parameters > 0
    features, kernel, seed = performer.options
    assert (features.name, features.default, features.least) == ("features", "256", 1)
    assert kernel.choices == ("softmax", "relu") and seed.default == "1"
    assert dba.zoo.member("linformer").options[-1].default is None


@pytest.mark.parametrize("name", NAMES)
def test_padding_and_packing_change_nothing_and_every_parameter_learns(name):
    layer = made(name)
    lengths = [LONGEST, 1, 23]
    x = tokens(3, LONGEST).requires_grad_()
    padding = torch.arange(LONGEST) >= torch.tensor(lengths)[:, None]
    y, none = layer(x, x, x, key_padding_mask=padding)
    assert none is None and y.shape == x.shape
    assert not y[padding].any() and y[~padding].isfinite().all()
    # Alone, beside others that are longer, and one behind the other.
    for b, length in enumerate(lengths):
        close(layer(x[b : b + 1, :length])[0][0], y[b, :length])
    packed, _ = layer(x[~padding], cu_seqlens=torch.tensor([0, 40, 41, 64]))
    close(packed, y[~padding])
    # Whatever stands in the padding is not read, NaN included.
    close(layer(x.masked_fill(padding[..., None], torch.nan), key_padding_mask=padding)[0], y)

    weights = tokens(3, LONGEST, seed=4)
    (y * weights).sum().backward()
    assert x.grad[~padding].abs().sum() > 0 and not x.grad[padding].any()
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name
        # Biases of keys cancel in a softmax; all else moves the output.
        assert parameter.grad.any() or parameter_name.endswith("bias"), parameter_name


@pytest.mark.parametrize("scale", [30.0, 300.0, 3000.0])
@pytest.mark.parametrize("name", NAMES)
def test_outliers_leave_values_and_gradients_finite(name, scale):
    """Scores far beyond what an exponential or a sigmoid in single precision tells from nothing."""
    layer = made(name).float()
    x = (scale * tokens(2, LONGEST, seed=3)).float().requires_grad_()
    y, _ = layer(x)
    assert y.isfinite().all()
    (y * tokens(2, LONGEST, seed=4)).sum().backward()
    assert x.grad.isfinite().all()
    for parameter_name, parameter in layer.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", NAMES)
def test_cross_attention_is_there_where_the_record_says_so(name):
    layer = made(name)
    x, memory = tokens(2, 9), tokens(2, LONGEST, seed=5)
    padding = torch.arange(LONGEST) >= torch.tensor([[LONGEST], [7]])
    # DBA has its own sentence in the registry: there cross-attention is another module.
    if not dba.zoo.member(name).capabilities.cross_attention and name != "dba":
        with pytest.raises(ValueError, match=f"dba::{name}: has no cross-attention"):
            layer(x, memory)
        return
    y, _ = layer(x, memory, memory, key_padding_mask=padding)
    assert y.shape == x.shape
    close(layer(x[1:], memory[1:, :7])[0], y[1:])


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_is_copied_stored_and_cast_as_any_module(name):
    torch.manual_seed(7)
    layer = made(name, dropout=0.5).eval()
    x = tokens(2, 12)
    y = layer(x)[0]
    before = torch.get_rng_state()
    copies = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(8)
    fresh = dba.zoo.make(name, D, HEADS, dtype=torch.float64, **OPTIONS.get(name, {}))
    fresh.load_state_dict(layer.state_dict())
    for other in (*copies, fresh.eval()):
        assert torch.equal(other(x)[0], y)
    with torch.no_grad():
        for parameter in copies[0].parameters():
            parameter.zero_()
    assert torch.equal(layer(x)[0], y) and (name == "fnet" or not torch.equal(copies[0](x)[0], y))
    swapped = {key: value * 2 for key, value in layer.state_dict().items()}
    close(torch.func.functional_call(fresh, swapped, (x,))[0], loaded(fresh, swapped)(x)[0])
    # Sampling by hashes may decide otherwise in another precision.
    if dba.zoo.member(name).name not in ("reformer", "yoso"):
        torch.testing.assert_close(layer.float()(x.float())[0].double(), y, rtol=1e-3, atol=1e-4)


def loaded(layer, state):
    layer = copy.deepcopy(layer)
    layer.load_state_dict(state)
    return layer


def test_softmax_attention_is_that_of_pytorch():
    layer = made("softmax")
    reference = nn.MultiheadAttention(D, HEADS, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([layer.w_q.weight, layer.w_k.weight, layer.w_v.weight]))
        reference.in_proj_bias.copy_(torch.cat([layer.w_q.bias, layer.w_k.bias, layer.w_v.bias]))
        reference.out_proj.load_state_dict(layer.w_o.state_dict())
    x, padding = tokens(2, 11), torch.arange(11) >= torch.tensor([[11], [6]])
    close(layer(x, key_padding_mask=padding)[0][~padding],
          reference(x, x, x, key_padding_mask=padding, need_weights=False)[0][~padding])


def test_the_seed_decides_random_choices_and_torchs_generator_the_weights():
    same, other = made("performer"), made("performer", seed=5)
    assert torch.equal(same.features, made("performer").features) and not torch.equal(same.features, other.features)
    assert torch.equal(same.w_q.weight, other.w_q.weight)


def test_dropout_acts_in_training_alone():
    layer = made("local", dropout=0.5)
    x = tokens(1, 12)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives_are_right_or_refused(name):
    layer = made(name, dropout=0.2)

    def output(x):
        torch.manual_seed(3)
        return layer(x)[0]

    x = tokens(1, 6).requires_grad_()
    try:
        torch.autograd.grad(output(x).square().sum(), x, create_graph=True)[0].square().sum().backward()
    except RuntimeError as refusal:
        assert "double backward is not supported" in str(refusal) or "is not implemented" in str(refusal)
        return
    # Estimates by hashes have a gradient of their own choice.
    if name != "yoso":
        assert torch.autograd.gradgradcheck(output, (x,), fast_mode=True)


def test_a_member_serves_in_pytorchs_encoder_and_in_compiled_code():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(D, HEADS, 32, batch_first=True, dropout=0.0).eval()
    layer.self_attn = dba.zoo.make("nystromformer", D, HEADS, landmarks=4)
    x = torch.randn(2, 20, D)
    padding = torch.arange(20) >= torch.tensor([[20], [13]])
    with torch.no_grad():
        y = layer(x, src_key_padding_mask=padding)
        torch.testing.assert_close(layer(x[1:, :13]), y[1:, :13])
        compiled = torch.compile(layer, backend="eager")
        torch.testing.assert_close(compiled(x, src_key_padding_mask=padding), y)


def test_what_cannot_be_done_is_said_in_a_sentence():
    x = tokens(1, LONGEST + 1)
    linformer, local = made("linformer"), made("local")
    for sentence, call in (
        ('no member is called "perfomer"; the nearest known one is "performer"', lambda: made("perfomer")),
        ('the options features, kernel, seed, got "feature"; the nearest known one is "features"',
         lambda: dba.zoo.make("performer", D, HEADS, feature=3)),
        ('flowformer has no options of its own, got "d_p"', lambda: made("flowformer", d_p=4)),
        ('dba has the options d_p, d_in, .*, got "slots"', lambda: made("dba", slots=4)),
        ("option features of performer must be an integer of 1 or more, got \"0\"",
         lambda: dba.zoo.make("performer", D, HEADS, features=0)),
        ("give the option max_length", lambda: dba.zoo.make("linformer", D, HEADS)),
        ("at most max_length = 40 tokens, got one of 41", lambda: linformer(x)),
        ("d must be divisible by heads", lambda: dba.zoo.make("local", D, 3)),
        ("has no cross-attention", lambda: local(x, tokens(1, 3))),
        ("must be of the parameters' type", lambda: local(x.float())),
        ("need_weights must be False", lambda: local(x, need_weights=True)),
        ("is_causal must be False", lambda: local(x, is_causal=True)),
        ("key_padding_mask must have shape", lambda: local(x, key_padding_mask=torch.zeros(1, 2, dtype=torch.bool))),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch finds no GPU"))])
@pytest.mark.parametrize("n, m, hashes", [(1, 1, 1), (5, 63, 3), (17, 300, 70), (40, 128, 32)])
def test_agreeing_codes_are_counted(device, n, m, hashes):
    """Every pair of a query and a key, with codes of sixteen bits, in every type that products are taken in."""
    chance = torch.Generator().manual_seed(n)
    choices = torch.tensor([0, 1, -1, 255, 256, -32768], dtype=torch.int16)
    queries = choices[torch.randint(0, 6, (3, n, hashes), generator=chance)].to(device)
    keys = choices[torch.randint(0, 6, (3, hashes, m), generator=chance)].to(device)
    counts = (queries.unsqueeze(3) == keys.unsqueeze(1)).sum(2)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        found = torch.ops.dba.code_agreement(queries, keys, dtype)
        assert found.dtype == dtype and torch.equal(found, counts.to(dtype))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_member_computes_the_same_on_a_gpu(name, padded):
    layer = made(name).eval()
    padding = torch.arange(LONGEST) >= torch.tensor([[LONGEST], [1], [23]]) if padded else None

    def outcome(device):
        x = tokens(3, LONGEST).to(device).requires_grad_()
        y = layer.to(device)(x, key_padding_mask=padding.to(device) if padded else None)[0]
        weight = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).view_as(y).to(device)
        return y.detach().cpu(), torch.autograd.grad((y * weight).sum(), x)[0].cpu()

    torch.testing.assert_close(outcome("cuda"), outcome("cpu"), rtol=1e-7, atol=1e-7)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
# Heads have eight columns, as PyTorch's memory-efficient kernel takes them; keys are no multiple of eight.
ON_KERNELS = {
    "softmax": {},
    "local": {"block": 7},
    "sparse": {"summary": 3},
    "longformer": {"window": 10, "globals": 3},
    "bigbird": {"block": 5, "random": 2},
    "linformer": {"k": 5, "max_length": LONGEST},
    "sinkhorn": {"block": 7, "max_length": LONGEST},
    "nystromformer": {"landmarks": 5, "conv": 3},
    "pixelfly": {"block": 3, "butterfly": 4, "rank": 3},
}


def kernel_layer(name, dtype, dropout=0.0):
    torch.manual_seed(2)
    return dba.zoo.make(name, D, HEADS, dtype=dtype, dropout=dropout, **ON_KERNELS[name])


@needs_gpu
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.float16, 2e-2), (torch.bfloat16, 1e-1)])
@pytest.mark.parametrize("lengths", [[LONGEST, 1, 23, 0], [37, 37, 37], [LONGEST, LONGEST]])
@pytest.mark.parametrize("name", ON_KERNELS)
def test_kernels_that_take_masks_compute_what_the_cpu_does_in_double(name, lengths, dtype, tolerance):
    """Values and gradients with padding and without, sequences of no token among them: there a query sees nothing."""
    longest, batch = max(lengths), len(lengths)
    padding = torch.arange(longest) >= torch.tensor(lengths)[:, None]
    weight = tokens(batch, longest, seed=4)
    start = kernel_layer(name, dtype).eval()

    def outcome(device, in_dtype):
        layer = copy.deepcopy(start).to(device, in_dtype)
        x = tokens(batch, longest).to(dtype).to(device, in_dtype).requires_grad_()
        y = layer(x, key_padding_mask=padding.to(device) if padding.any() else None)[0]
        leaves = [x, *layer.parameters()]
        gradients = torch.autograd.grad((y.double() * weight.to(device)).sum(), leaves)
        return [one.detach().double().cpu() for one in (y, *gradients)]

    for found, expected in zip(outcome("cuda", dtype), outcome("cpu", torch.float64), strict=True):
        assert found.isfinite().all()
        assert (found - expected).norm() <= tolerance * max(expected.norm(), 1.0)


@needs_gpu
@pytest.mark.parametrize("name", [*ON_KERNELS, "reformer"])
def test_dropout_on_a_gpu_is_the_seeds_and_its_gradient_is_of_the_same_entries(name):
    torch.manual_seed(2)
    options = ON_KERNELS.get(name, {"chunk": LONGEST, "buckets": 2, "rounds": 1})
    layer = dba.zoo.make(name, D, HEADS, dropout=0.4, **options).cuda()
    padding = (torch.arange(LONGEST) >= torch.tensor([[LONGEST], [23]])).cuda()
    value = layer.w_v.weight
    direction = torch.randn(value.shape, generator=torch.Generator().manual_seed(6)).cuda()
    x, weight = tokens(2, LONGEST).float().cuda(), tokens(2, LONGEST, seed=4).float().cuda()

    def loss(seed, step=0.0):
        torch.manual_seed(seed)
        state = {"w_v.weight": value + step * direction}
        return (torch.func.functional_call(layer, state, (x,), {"key_padding_mask": padding})[0] * weight).sum()

    assert torch.equal(loss(1), loss(1)) and not torch.equal(loss(1), loss(2))
    # The output is linear in the values' weights: a difference of any width is exact.
    slope = (torch.autograd.grad(loss(1), value)[0] * direction).sum()
    torch.testing.assert_close(slope, (loss(1, 1.0) - loss(1, -1.0)) / 2, rtol=1e-3, atol=1e-3)


@needs_gpu
def test_more_blocks_than_a_grid_has_places_for_are_attended_to():
    layer = dba.zoo.make("local", D, HEADS, block=1).cuda()
    x = torch.randn(2, 40000, D, device="cuda", requires_grad=True)
    y = layer(x)[0]
    torch.testing.assert_close(y, layer.w_o(layer.w_v(x)), rtol=1e-4, atol=1e-4)
    y.sum().backward()
    assert x.grad.isfinite().all()


@needs_gpu
def test_reformer_trains_on_long_batches_within_the_memory_of_one_map():
    batch, n, d, heads, keys = 256, 1025, 64, 8, 2 * 128
    layer = dba.zoo.make("reformer", d, heads, dropout=0.1, dtype=torch.bfloat16).cuda()
    x = torch.randn(batch, n, d, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    layer(x)[0].sum().backward()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    layer(x)[0].sum().backward()
    assert torch.cuda.max_memory_allocated() - before < batch * n * heads * keys * 4
