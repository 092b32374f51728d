"""What the CUDA kernels promise beside their numbers: bits, strides, sizes, graphs, PyTorch's switches and errors."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from error_rule import ROUNDING, SCORE_SUMS, check
from loaded_library import LIBRARY
from plain_passes import (LENGTHS, RNG, TYPES, Batch, attention_operands, in_reference, kernels, leaves, needs_gpu,
                          run_attention)

__all__ = ["kernels"]
pytestmark = [needs_gpu, pytest.mark.usefixtures("kernels")]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_thirty_repetitions_have_identical_bits(dtype):
    generator = torch.Generator().manual_seed(4)
    batch, tensors = attention_operands(4, 16, 128, 24, True, False, [3000, 1, 0, 500, 2000], generator)
    operands = leaves([None if t is None else t.to(dtype) for t in tensors], dtype)
    first = run_attention(operands, batch, 4, 0.1)
    for _ in range(30):
        assert all(torch.equal(a, b) for a, b in zip(first, run_attention(operands, batch, 4, 0.1), strict=True))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_first_call_of_a_thread_may_be_any_of_ours(dtype):
    """Where PyTorch has not used the GPU yet, nobody has made its context the thread's."""
    batch = Batch([106, 0, 300], gaps=(0,))
    x, rows, m = (torch.randn(*shape, device="cuda").to(dtype) for shape in ((batch.rows, 64), (8, 64), (3, 8, 64)))
    rng = torch.tensor(RNG, device="cuda")
    bounds = batch.begin_tensor, batch.end_tensor
    dy, c, r, lse = torch.randn_like(x), *torch.ops.dba.compress(x, *bounds, None, None, rows, None, 0, 0.0, rng)
    calls = [
        lambda: torch.ops.dba.compress(x, *bounds, None, None, rows, None, 0, 0.0, rng),
        lambda: torch.ops.dba.compress_backward(x, *bounds, None, None, rows, None, 0, 0.0, rng, c, r, lse, c, r, None),
        lambda: (torch.ops.dba.restore(x, *bounds, rows, None, m, None, 2, False, 0.0, rng),),
        lambda: torch.ops.dba.restore_backward(x, *bounds, rows, None, m, None, 2, False, 0.0, rng, dy),
    ]
    for call in calls:
        expected, found = call(), []
        torch.cuda.synchronize()
        thread = threading.Thread(target=lambda: found.extend(call()))
        thread.start()
        thread.join()
        torch.cuda.synchronize()
        assert len(found) == len(expected)
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(found, expected, strict=True))


HALF_TYPES = [dtype for dtype in TYPES if dtype != torch.float32]


@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
@pytest.mark.parametrize("released", [False, True], ids=["paper", "released"])
@pytest.mark.parametrize(("heads", "d_out"), [(1, 16), (2, 48), (4, 256)])
def test_m_is_kept_without_what_the_rows_of_a_head_have_in_common(heads, d_out, released, dtype):
    """In the tokens' type; under dropout, where it passes, as it is."""
    generator = torch.Generator().manual_seed(7)
    batch, tensors = attention_operands(heads, 16, 64 * heads, 6 * heads, False, released, [300, 1, 0, 70], generator)
    x, *_, shared, shared_bias, rows, bias, _, = (None if t is None else t.to(dtype) for t in tensors[:8])
    weights = [None if t is None else t.to(dtype) for t in tensors[8:]]
    weights[11] = weights[11][:d_out]
    rng = torch.tensor(RNG, device="cuda")
    for p in (0.0, 0.1):
        *_, c, r, _, kept = torch.ops.dba.attention_forward(
            x, batch.begin_tensor, batch.end_tensor, None, None, shared, shared_bias, 0, weights, rows, bias, None, heads,
            False, p, rng)
        m = torch.ops.dba.core(c, r, weights, heads, p, rng)[0]
        by_head = m.unflatten(1, (heads, 16))
        expected = m if p > 0 else (by_head - by_head.mean(2, keepdim=True)).flatten(1, 2)
        assert kept.dtype == dtype
        torch.testing.assert_close(kept.float(), expected, rtol=ROUNDING[dtype], atol=1e-6 * float(m.abs().max()))


@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
@pytest.mark.parametrize("p", [0.0, 0.1])
def test_float32_rows_beside_half_tokens_have_the_same_gradients_unrounded(dtype, p):
    generator = torch.Generator().manual_seed(8)
    batch, tensors = attention_operands(4, 16, 128, 24, False, False, [3000, 1, 0, 500], generator)
    half = leaves([None if t is None else t.to(dtype) for t in tensors], dtype)
    wide = [t if t is None or not 3 <= i < 8 else t.detach().float().requires_grad_() for i, t in enumerate(half)]
    assert [t.dtype for t in wide[3:8]] == [torch.float32] * 5
    for rounded, found in zip(run_attention(half, batch, 4, p), run_attention(wide, batch, 4, p), strict=True):
        assert torch.equal(rounded, found.to(rounded.dtype))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_any_strides(dtype):
    generator = torch.Generator().manual_seed(5)
    batch, tensors = attention_operands(2, 16, 64, 24, True, False, LENGTHS, generator)
    operands = leaves([None if t is None else t.to(dtype) for t in tensors], dtype)
    strided = [None if t is None else torch.stack([t.detach(), t.detach()], -1)[..., 0].requires_grad_()
               for t in operands]
    assert not strided[0].is_contiguous()
    for a, b in zip(run_attention(operands, batch, 2, 0.1), run_attention(strided, batch, 2, 0.1), strict=True):
        assert torch.equal(a, b)


def one_number_on(tensor):
    """The same values one number behind an aligned address, contiguous."""
    if tensor is None:
        return None
    memory = tensor.new_empty(tensor.numel() + 1)
    memory[1:] = tensor.detach().flatten()
    return memory[1:].view(tensor.shape).requires_grad_()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_any_addresses(dtype):
    generator = torch.Generator().manual_seed(5)
    batch, tensors = attention_operands(2, 16, 64, 24, True, False, LENGTHS, generator)
    operands = leaves([None if t is None else t.to(dtype) for t in tensors], dtype)
    moved = [one_number_on(t) for t in operands]
    assert moved[0].is_contiguous() and moved[0].data_ptr() % 16 != 0
    for a, b in zip(run_attention(operands, batch, 2, 0.1), run_attention(moved, batch, 2, 0.1), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gradients_at_any_address_and_stride(dtype):
    """dC and dr in one tensor, as the gradient of a concatenation comes; dY at an odd address, and as columns."""
    batch = Batch([106])
    rng = torch.tensor(RNG, device="cuda")
    draw = lambda *shape: torch.randn(*shape, generator=generator).to("cuda", dtype).requires_grad_()
    generator = torch.Generator().manual_seed(6)
    x, shared, m = draw(batch.rows, 64), draw(6, 64), draw(1, 8, 64)
    bounds = batch.begin_tensor, batch.end_tensor
    c, r, _ = torch.ops.dba.compress(x, *bounds, None, None, shared, None, 0, 0.0, rng)
    weight = torch.randn(r.numel() + c.numel(), device="cuda")
    together = torch.autograd.grad((torch.cat([r.flatten(), c.flatten()]) * weight).sum(), [x, shared],
                                   retain_graph=True)
    apart = torch.autograd.grad([r, c], [x, shared], [weight[:r.numel()].view_as(r).clone(),
                                                      weight[r.numel():].view_as(c).clone()])
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))

    y = torch.ops.dba.restore(x, *bounds, shared[:4].repeat(2, 1), None, m, None, 2, False, 0.0, rng)
    dy = torch.randn(y.shape, device="cuda").to(dtype)
    expected = torch.autograd.grad(y, [x, m], dy, retain_graph=True)
    columns = torch.stack([dy, dy], -1)[..., 0]
    for given in (one_number_on(dy).detach(), columns):
        found = torch.autograd.grad(y, [x, m], given, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_single_row_of_any_stride(kernels):
    wide = torch.randn(3, 260, device="cuda").bfloat16()
    begin, end = torch.tensor([0], device="cuda"), torch.tensor([1], device="cuda")
    shared = torch.randn(8, 256, device="cuda").bfloat16()
    call = lambda x: torch.ops.dba.compress(x, begin, end, None, None, shared, None, 0, 0.0, None)[0]
    assert torch.equal(call(wide[:1, :256]), call(wide[:1, :256].clone()))


def test_no_tokens_are_no_fall_back():
    """Backend fused makes an error of every fall-back."""
    nothing = torch.zeros(0, dtype=torch.int64, device="cuda")
    x = torch.zeros(0, 64, device="cuda", requires_grad=True)
    shared = torch.randn(8, 64, device="cuda", requires_grad=True)
    c = torch.ops.dba.compress(x, nothing, nothing, None, None, shared, None, 0, 0.0, None)[0]
    assert c.shape == (0, 8, 64)
    assert torch.autograd.grad(c.sum(), shared)[0].count_nonzero() == 0


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_no_columns_are_no_fall_back(dtype):
    """An M without columns: y has none either, and no score has a gradient."""
    begin, end = torch.tensor([0, 70], device="cuda"), torch.tensor([70, 200], device="cuda")
    x, rows = (torch.randn(n, 64, device="cuda").to(dtype).requires_grad_() for n in (200, 16))
    m, out_bias = (torch.zeros(shape, device="cuda", requires_grad=True) for shape in ((2, 16, 0), (0,)))
    y = torch.ops.dba.restore(x, begin, end, rows, None, m, out_bias, 4, False, 0.0, None)
    assert y.shape == (200, 0) and y.dtype == dtype
    dx, drows, dm, dbias = torch.autograd.grad(y, [x, rows, m, out_bias], torch.zeros_like(y))
    assert dm.shape == (2, 16, 0) and dbias.shape == (0,)
    assert dx.count_nonzero() == 0 and drows.count_nonzero() == 0


def test_no_heads_are_an_error():
    batch, tensors = attention_operands(2, 16, 64, 24, True, False, [5], torch.Generator().manual_seed(7))
    with pytest.raises(RuntimeError, match="heads must be 1 or more, got 0"):
        run_attention(leaves(tensors, torch.float32), batch, 0, 0.0)


@pytest.mark.parametrize("dtype,name", [(torch.float64, "Double"), (torch.float8_e4m3fn, "Float8_e4m3fn")], ids=str)
def test_types_without_kernels_are_named(dtype, name):
    x = torch.randn(9, 64, device="cuda").to(dtype)
    begin, end = torch.tensor([0], device="cuda"), torch.tensor([9], device="cuda")
    with pytest.raises(RuntimeError, match=f"x must be float32, bfloat16 or float16, got {name}"):
        torch.ops.dba.compress(x, begin, end, None, None, x[:4], None, 0, 0.0, None)


def test_operands_on_the_cpu_are_refused_before_a_kernel_reads_them():
    rng, two = torch.tensor(RNG, device="cuda"), torch.tensor([0, 3], device="cuda")
    mask = lambda *of: torch.ops.dba.dropout_mask(of[0], 0.5, 1, *of[1:], 5, 4, torch.float32)
    with pytest.raises(RuntimeError, match="rng must be on the device of sequence, cuda:0, got Long .* on cpu"):
        mask(rng.cpu(), two, two)
    with pytest.raises(RuntimeError, match="first_token must be on the device of sequence, cuda:0, got .* on cpu"):
        mask(rng, two, two.cpu())
    z, weight, tail = (torch.ones(shape, device="cuda") for shape in ((3, 4), (4, 5), (2, 5)))
    with pytest.raises(RuntimeError, match="z and bias must be on one device"):
        torch.ops.dba.fold(z, weight, torch.ones(4), 2, 1.0)
    with pytest.raises(RuntimeError, match="z and tail_bias must be on one device"):
        torch.ops.dba.fold_stack(z, [weight], [None], tail, torch.ones(2), 2, 1.0)
    square = torch.ones(4, 4, device="cuda")
    weights = [square, None, square, None, square, None, *[None] * 5, square, None]
    with pytest.raises(RuntimeError, match="r must be on the device of c, cuda:0, got .* on cpu"):
        torch.ops.dba.core(torch.ones(2, 12, 4, device="cuda"), torch.ones(2, 12), weights, 2, 0.0, None)


def test_heads_as_wide_as_the_widest_tokens():
    z, weight = torch.randn(3, 5, 1024, device="cuda"), torch.randn(1024, 48, device="cuda")
    rows = torch.ops.dba.fold(z, weight, None, 1, 0.5)[0]
    expected = 0.5 * z.double() @ weight.double()
    assert (rows.double() - expected).norm() < 1e-5 * expected.norm()


NEIGHBOURS = [5, 1, 0, 17, 30, 9, 64, 3]  # the first tile of 64 rows has four of them
POISONED = 3


def with_poison(tensor, batch, value):
    """A copy with one entry of the poisoned sequence's rows (N, d), or of what it has of its own (B, …, d), set."""
    copy = tensor.detach().clone()
    of_rows = copy.shape[0] == batch.rows
    (copy[batch.begin[POISONED] + 4] if of_rows else copy[POISONED, 5])[3] = value
    return copy


def without_poisoned(tensor, batch):
    of_rows = tensor.shape[0] == batch.rows
    first, after = (batch.begin[POISONED], batch.end[POISONED]) if of_rows else (POISONED, POISONED + 1)
    return torch.cat([tensor[:first], tensor[after:]])


def check_neighbours(run, operands, batch):
    """`run` gives rows (N, …) and what each sequence has (B, …). Nobody but the poisoned sequence feels the poison."""
    expected = run(**operands)
    for name, operand in operands.items():
        for value in (float("inf"), float("nan")):
            got = run(**{**operands, name: with_poison(operand, batch, value)})
            assert not all(bool(t.isfinite().all()) for t in got.values()), f"the poison in {name} vanished"
            for of, tensor in got.items():
                assert torch.equal(without_poisoned(tensor, batch), without_poisoned(expected[of], batch)), \
                    f"{of} of the others, {value} in {name}"


@pytest.mark.parametrize("p", [0.0, 0.1])
@pytest.mark.parametrize("width", [64, 520])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_nan_and_infinity_stay_in_their_sequence(dtype, width, p):
    generator = torch.Generator().manual_seed(11)
    batch = Batch(NEIGHBOURS)
    rng = torch.tensor(RNG, device="cuda")
    make = lambda *shape, deviation=1.0: (torch.randn(*shape, generator=generator) * deviation).cuda()
    shared = make(64, width, deviation=width**-0.5).to(dtype)
    operands = {"x": batch.tokens(generator, width).to(dtype),
                "each": make(len(batch), 64, width, deviation=width**-0.5).to(dtype)}
    place = (batch.begin_tensor, batch.end_tensor)

    def run_compress(x, each, dc):
        x, each = (t.detach().requires_grad_() for t in (x, each))
        c, r, lse = torch.ops.dba.compress(x, *place, each, None, shared, None, 0, p, rng)
        dx, deach = torch.autograd.grad(c, [x, each], dc)
        lse = torch.where(batch.end_tensor > batch.begin_tensor, lse.t(), 0).t()  # −∞ of the empty one is no poison
        return {"c": c, "r": r, "lse": lse, "dx": dx, "deach": deach}

    def run_restore(x, m, dy, each=None):
        x, m, rows = (t.detach().requires_grad_() for t in (x, m, shared if each is None else each))
        y = torch.ops.dba.restore(x, *place, rows, None, m, None, 4, False, p, rng)
        dx, dm, drows = torch.autograd.grad(y, [x, m, rows], dy)
        return {"y": y, "dx": dx, "dm": dm, **({} if each is None else {"drows": drows})}

    check_neighbours(run_compress, {**operands, "dc": make(len(batch), 128, width)}, batch)
    of_restore = {"m": make(len(batch), 64, width), "dy": batch.tokens(generator, width).to(dtype)}
    check_neighbours(run_restore, {"x": operands["x"], **of_restore}, batch)
    check_neighbours(run_restore, {**operands, **of_restore}, batch)


@pytest.mark.parametrize("released", [False, True], ids=["paper", "released"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_nan_and_infinity_stay_in_their_sequence_through_a_layer(dtype, released):
    generator = torch.Generator().manual_seed(12)
    batch, tensors = attention_operands(4, 16, 256, 24, True, released, NEIGHBOURS, generator)
    x, each, *others = (None if t is None else t.to(dtype) for t in tensors)
    each_bias, shared, shared_bias, restore_rows, restore_bias, out_bias, *weights = others

    def run(x, each, dy, dc):
        x, each = (t.detach().requires_grad_() for t in (x, each))
        y, c = torch.ops.dba.attention(x, batch.begin_tensor, batch.end_tensor, each, each_bias, shared, shared_bias, 0,
                                       weights, restore_rows, restore_bias, out_bias, 4, False, 0.0, None)
        dx, deach = torch.autograd.grad([y, c], [x, each], [dy, dc])
        return {"y": y, "c": c, "dx": dx, "deach": deach}

    dy = batch.tokens(generator, 256).to(dtype)
    dc = torch.randn(len(batch), 16, 256, generator=generator).cuda()
    check_neighbours(run, {"x": x, "each": each, "dy": dy, "dc": dc}, batch)


def run_last(x, begin, end, first, shared, m, dc, dy):
    """What the passes and their gradients make of the last sequence, which begins at row `first`."""
    x, shared, m = (t.detach().requires_grad_() for t in (x, shared, m))
    c = torch.ops.dba.compress(x, begin, end, None, None, shared, None, 0, 0.0, None)[0]
    of_c = torch.zeros_like(c)
    of_c[-1] = dc
    dx, dshared = torch.autograd.grad(c, [x, shared], of_c)
    results = [c[-1], dx[first:].clone(), dshared]
    del dx
    y = torch.ops.dba.restore(x, begin, end, shared, None, m, None, 4, False, 0.0, None)
    of_y = torch.zeros_like(y)
    of_y[first:] = dy
    dx, dshared, dm = torch.autograd.grad(y, [x, shared, m], of_y)
    return [*results, y[first:].clone(), dx[first:].clone(), dshared, dm[-1]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_more_than_two_to_the_31_elements(dtype):
    """The last sequence of X, whose elements lie beyond 2³¹, errs no more than it does alone: in float32 by the library's
    reference, because what is in one range here is in many there, and their sums round less."""
    rows, d, length = (1 << 23) + 1000, 256, 777
    if torch.cuda.mem_get_info()[0] < 6 * rows * d * 4:
        pytest.skip("needs about 50 GB of free GPU memory")
    torch.manual_seed(7)
    first = rows - length
    x = torch.randn(rows, d, device="cuda", dtype=dtype)
    begin, end = torch.tensor([0, first], device="cuda"), torch.tensor([first, rows], device="cuda")
    shared = torch.randn(64, d, device="cuda").to(dtype) / 16
    m = torch.randn(2, 64, d, device="cuda")
    dc, dy = torch.randn(64, d, device="cuda"), torch.randn(length, d, device="cuda").to(dtype)
    got = run_last(x, begin, end, first, shared, m, dc, dy)
    alone = (x[first:].clone(), begin[:1], begin[:1] + length, 0, shared, m[1:], dc, dy)
    exact = in_reference(run_last, *(t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t
                                     for t in alone))
    same_precision = in_reference(run_last, *alone) if dtype == torch.float32 else run_last(*alone)
    names = ["c", "dx of compress", "dshared", "y", "dx of restore", "drows", "dm"]
    check(names, [(got, same_precision, exact)], dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_seventy_thousand_sequences(dtype):
    """Of one token or none: C is the token, as exactly as its score is known, and Y its slots' mean of M."""
    count, d, slots = 70_000, 32, 8
    generator = torch.Generator(device="cuda").manual_seed(13)
    make = lambda *shape: torch.randn(*shape, generator=generator, device="cuda").to(dtype)
    here = torch.arange(count, device="cuda") % 3 != 1
    end = here.cumsum(0)
    x, rows, m = make(int(end[-1]), d), make(slots, d), make(count, slots, d).float()
    c, r, lse = torch.ops.dba.compress(x, end - here.long(), end, None, None, rows, None, 0, 0.0, None)
    y = torch.ops.dba.restore(x, end - here.long(), end, rows, None, m, None, 2, False, 0.0, None)
    scores = x.double() @ rows.double().t()
    weights = scores.view(-1, 2, slots // 2).softmax(-1).flatten(1)
    expected = torch.einsum("ns,nsd->nd", weights, m[here].double())
    tolerance = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}[dtype]
    torch.testing.assert_close(c[here], x.float().unsqueeze(1).expand(-1, slots, -1), rtol=SCORE_SUMS["r"], atol=0)
    torch.testing.assert_close(r, here.float().unsqueeze(1).expand(-1, slots), rtol=SCORE_SUMS["r"], atol=0)
    assert not c[~here].any() and bool(lse[~here].isneginf().all())
    torch.testing.assert_close(lse[here].double(), scores, rtol=0, atol=1e-4)
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize("switch,allowing,forbidding",
                         [("fp32_precision", "tf32", "ieee"), ("allow_tf32", True, False)])
def test_float32_is_rounded_to_tf32_where_the_switch_allows_it(switch, allowing, forbidding, width):
    generator = torch.Generator().manual_seed(9)
    batch, tensors = attention_operands(4, 16, width, 24, False, False, LENGTHS, generator)
    rounded = [None if t is None else t.float().double() for t in tensors]
    exact = in_reference(run_attention, leaves(rounded, torch.double), batch, 4, 0.0)[0]
    error = {}
    for value in (allowing, forbidding):
        setattr(torch.backends.cuda.matmul, switch, value)
        try:
            y = run_attention(leaves(rounded, torch.float32), batch, 4, 0.0)[0]
        finally:
            setattr(torch.backends.cuda.matmul, switch, forbidding)
        error[value] = float((y.double() - exact).norm() / exact.norm())
    assert error[forbidding] < 1e-5 and 10 * error[forbidding] < error[allowing] < 1e-2, error


def test_without_memory_pytorchs_error_comes_and_nothing_else():
    """With any amount of room the call throws PyTorch's error or gives the bits that it gives with plenty."""
    generator = torch.Generator().manual_seed(10)
    batch, tensors = attention_operands(4, 16, 256, 24, False, False, [40000, 0, 9000], generator)
    operands = leaves([None if t is None else t.bfloat16() for t in tensors], torch.bfloat16)
    expected = run_attention(operands, batch, 4, 0.1)
    refused = 0
    try:
        for room in range(0, 256, 16):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            allowed = torch.cuda.memory_reserved() + (room << 20)
            torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.mem_get_info()[1])
            try:
                got = run_attention(operands, batch, 4, 0.1)
            except torch.OutOfMemoryError:
                refused += 1
                continue
            assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
            del got
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert refused > 0
    assert all(torch.equal(a, b) for a, b in zip(expected, run_attention(operands, batch, 4, 0.1), strict=True))


FALL_BACKS = """
import sys, torch
for name in ("libdba.so", "libdba_cuda.so"):
    torch.ops.load_library(f"{sys.argv[1]}/{name}")
begin, end = torch.tensor([0], device="cuda"), torch.tensor([9], device="cuda")
for width, slots in ((2048, 4), (64, 5)):
    x = torch.randn(9, width, device="cuda").bfloat16()
    m = torch.randn(1, slots, 8, device="cuda")
    torch.ops.dba.restore(x, begin, end, x[:slots], None, m, None, 1, False, 0.0, None)
"""


def test_the_log_says_who_serves_instead():
    said = subprocess.run([sys.executable, "-c", FALL_BACKS, str(LIBRARY.parent)], check=True, capture_output=True,
                          text=True, env={**os.environ, "DBA_LOG": "debug"}).stderr
    assert "dba: restore: the reference, because the CUDA kernels take widths from 8 to 1024, and x has 2048" in said
    if torch.cuda.get_device_capability()[0] == 9:
        assert "dba: restore: the general CUDA kernels, because" in said


def test_graph_capture_on_another_stream():
    generator = torch.Generator().manual_seed(6)
    batch, tensors = attention_operands(4, 16, 256, 24, True, False, LENGTHS, generator)
    operands = leaves([None if t is None else t.bfloat16() for t in tensors], torch.bfloat16)
    rng = torch.tensor(RNG, device="cuda")
    x, each, each_bias, shared, shared_bias, restore_rows, restore_bias, out_bias, *weights = operands
    dy = torch.randn(batch.rows, 256, device="cuda", dtype=torch.bfloat16)
    def step():
        y, _ = torch.ops.dba.attention(x, batch.begin_tensor, batch.end_tensor, each, each_bias, shared, shared_bias, 0,
                                       weights, restore_rows, restore_bias, out_bias, 4, False, 0.1, rng)
        return [y, *torch.autograd.grad(y, [t for t in operands if t is not None], dy)]
    expected = [t.detach() for t in step()]  # without the graph, whose leaves would stay on this stream
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(expected, captured, strict=True))
