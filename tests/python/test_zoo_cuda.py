"""The zoo on a GPU: the numbers of the CPU, through the kernels that its members take."""

import copy

import pytest
import torch
from small_zoo import D, HEADS, LONGEST, NAMES, dba, made, tokens

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
# Heads have eight columns, as PyTorch's memory-efficient kernel takes them; keys are no multiple of eight.
ON_KERNELS = {
    "softmax": {},
    "local": {"block": 7},
    "sparse": {"summary": 1},
    "longformer": {"window": 10, "globals": 3},
    "bigbird": {"block": 5, "random": 2},
    "linformer": {"k": 5, "max_length": LONGEST},
    "sinkhorn": {"block": 7, "max_length": LONGEST},
    "nystromformer": {"landmarks": 5, "conv": 3},
    "pixelfly": {"block": 3, "butterfly": 4, "rank": 3},
}


@needs_gpu
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


@needs_gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_member_trains_by_repeatable_algorithms(name, monkeypatch):
    """As `dba train` asks PyTorch for them, which refuses operations that have none."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    layer = made(name).to("cuda", torch.float32)
    padding = (torch.arange(LONGEST) >= torch.tensor([[LONGEST], [1], [23]])).cuda()
    x = tokens(3, LONGEST).to("cuda", torch.float32).requires_grad_()
    torch.use_deterministic_algorithms(True)
    try:
        layer(x, key_padding_mask=padding)[0].sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


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
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 1e-1)])
def test_an_estimate_that_scatterbrain_replaces_leaves_no_rounding_behind(dtype, tolerance):
    """One token lies along a direction of the features: its estimate of itself outweighs all that counts."""
    width, special = 64, 20
    layer = dba.zoo.make("scatterbrain", width, 1, bias=False, window=8)
    for parameter in layer.parameters():
        parameter.data = torch.eye(width)
    x = tokens(1, 600, width // D).flatten(2) * 0.1
    x[0, special] = layer.features[0] * width**0.25 / 2

    def outcome(device, in_dtype):
        leaf = x.to(dtype).to(device, in_dtype).requires_grad_()
        y = copy.deepcopy(layer).to(device, in_dtype)(leaf)[0]
        return [one.detach().double().cpu() for one in (y, torch.autograd.grad(y[0, special].square().sum(), leaf)[0])]

    for found, expected in zip(outcome("cuda", dtype), outcome("cpu", torch.float64), strict=True):
        assert (found - expected).norm() <= tolerance * expected.norm()


@needs_gpu
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-4)])
def test_yoso_in_buckets_has_the_gradients_of_the_cpu_and_repeats_them(dtype, tolerance):
    """Few buckets and hashes: there tables are faster than pairs from 1,100 tokens on."""
    layer = dba.zoo.make("yoso", D, HEADS, tau=2, hashes=3).double()
    longest = 1600
    padding = torch.arange(longest) >= torch.tensor([[longest], [1], [700]])

    def gradients(device, in_dtype):
        x = tokens(3, longest).to(device, in_dtype).requires_grad_()
        y = copy.deepcopy(layer).to(device, in_dtype)(x, key_padding_mask=padding.to(device))[0]
        return torch.autograd.grad((y.double() * tokens(3, longest, seed=4).to(device)).sum(), x)[0].double().cpu()

    found, expected = gradients("cuda", dtype), gradients("cpu", torch.float64)
    assert (found - expected).norm() <= tolerance * expected.norm()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(gradients("cuda", dtype), gradients("cuda", dtype))
    finally:
        torch.use_deterministic_algorithms(False)


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


@needs_gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_call_keeps_its_masks_whatever_is_called_later(name):
    """Masks of plain batches are kept from call to call, and those of a recording belong to it."""
    layer = made(name).eval().to("cuda", torch.float32)
    batch = tokens(2, LONGEST).to("cuda", torch.float32)
    with torch.no_grad():
        expected = layer(batch)[0].clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            layer(batch)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = layer(batch)[0]
        for length in [*range(1, LONGEST), LONGEST]:  # more shapes than are kept
            other = layer(batch[:, :length])[0]
        junk = torch.full((1 << 22,), float("nan"), device="cuda")
        recorded.zero_()
        graph.replay()
        torch.testing.assert_close(recorded, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(other, expected, rtol=1e-5, atol=1e-5)
        assert junk.isnan().all()


@needs_gpu
@pytest.mark.parametrize("name", ["linear", "flowformer"])
def test_heads_stay_together_in_long_batches(name):
    """Few tokens have their heads taken apart; these are many, with widths that both ways take."""
    torch.manual_seed(2)
    layer = dba.zoo.make(name, 64, 4, dtype=torch.float64, device="cuda").eval()
    x = torch.randn(40, 2000, 64, dtype=torch.float64, device="cuda")
    whole = layer(x)[0]
    for first in (0, 39):
        torch.testing.assert_close(layer(x[first : first + 1])[0], whole[first : first + 1], rtol=1e-8, atol=1e-8)
