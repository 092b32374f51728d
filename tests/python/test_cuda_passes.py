"""The fused CUDA kernels against the same algebra in plain PyTorch.

The truth is the algebra in float64. A kernel may be off by at most twice what the algebra in plain PyTorch (float32:
that or the library's reference, which like the kernels recomputes weights from a rounded log-sum-exp) is off in the
kernel's own precision, plus one rounding of the result.
"""

import os
import pathlib

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = pathlib.Path(os.environ.get("DBA_LIBRARY", ROOT / "build" / "release" / "lib" / "libdba.so"))
torch.ops.load_library(str(LIBRARY))
CUDA_LIBRARY = LIBRARY.with_name("libdba_cuda.so")
if CUDA_LIBRARY.exists():
    torch.ops.load_library(str(CUDA_LIBRARY))

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and CUDA_LIBRARY.exists()), reason="needs a CUDA GPU and libdba_cuda")

ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-22}
TYPES = list(ROUNDING)
LENGTHS = [0, 1, 17, 63, 0, 64, 100, 129, 700]
RNG = (1234567, (5 << 32) + 77)


@pytest.fixture(autouse=True, params=["auto", "general"])
def kernels(request):
    torch.ops.dba.set_cuda_kernels(request.param)
    torch.ops.dba.set_backend("fused")
    yield request.param
    torch.ops.dba.set_cuda_kernels("auto")
    torch.ops.dba.set_backend("auto")


class Batch:
    """Sequences with rows of nobody between them."""

    def __init__(self, lengths, gaps=(3, 0, 7)):
        self.begin, self.end, row = [], [], gaps[0]
        for index, length in enumerate(lengths):
            self.begin.append(row)
            row += length
            self.end.append(row)
            row += gaps[(index + 1) % len(gaps)]
        self.rows = row
        self.begin_tensor = torch.tensor(self.begin, device="cuda")
        self.end_tensor = torch.tensor(self.end, device="cuda")

    def __len__(self):
        return len(self.begin)

    def __iter__(self):
        return iter(zip(self.begin, self.end, strict=True))

    def tokens(self, generator, width, scale=1.0):
        """Rows of nobody hold NaN."""
        x = torch.full((self.rows, width), float("nan"), dtype=torch.double)
        for begin, end in self:
            x[begin:end] = scale * torch.randn(end - begin, width, generator=generator, dtype=torch.double)
        return x.cuda()


def mask(p, site, sequence, tokens, slots, like):
    if p == 0 or tokens == 0:
        return torch.ones(tokens, slots, dtype=like.dtype, device="cuda")
    rng = torch.tensor(RNG, device="cuda")
    first = torch.zeros(1, dtype=torch.long, device="cuda")
    return torch.ops.dba.dropout_mask(rng, p, site, first + sequence, first, tokens, slots, torch.float64)[0].to(like)


def plain_compress(x, batch, each, each_bias, shared, shared_bias, linear, p):
    c, r, lse = [], [], []
    for b, (begin, end) in enumerate(batch):
        tokens = x[begin:end]
        rows = torch.cat([t for t in (each[b] if each is not None else None, shared) if t is not None])
        scores = tokens @ rows.t()
        if each_bias is not None:
            scores[:, :each_bias.shape[1]] += each_bias[b].to(scores.dtype)
        if shared_bias is not None:
            scores[:, -shared_bias.shape[0]:] += shared_bias.to(scores.dtype)
        steep = rows.shape[0] - linear
        weights = torch.cat([torch.softmax(scores[:, :steep], 0), scores[:, steep:] / max(end - begin, 1)], 1)
        weights = weights * mask(p, 0, b, end - begin, rows.shape[0], weights)
        c.append(weights.t() @ tokens)
        r.append(weights.sum(0))
        if end > begin:
            log_length = torch.full((linear,), float(end - begin), dtype=x.dtype, device="cuda").log()
            lse.append(torch.cat([torch.logsumexp(scores[:, :steep], 0), log_length]))
        else:
            lse.append(torch.full((rows.shape[0],), -torch.inf, dtype=x.dtype, device="cuda"))
    return torch.stack(c), torch.stack(r), torch.stack(lse)


def plain_restore(x, batch, rows, bias, m, out_bias, heads, linear, p):
    y = [torch.zeros(batch.rows, m.shape[2], dtype=x.dtype, device="cuda")]
    pieces, covered = [], 0
    for b, (begin, end) in enumerate(batch):
        scores = x[begin:end] @ (rows[b] if rows.dim() == 3 else rows).t()
        if bias is not None:
            scores = scores + (bias[b] if bias.dim() == 2 else bias).to(scores.dtype)
        if not linear:
            scores = torch.softmax(scores.unflatten(1, (heads, -1)), 2).flatten(1)
        scores = scores * mask(p, 2, b, end - begin, scores.shape[1], scores)
        out = scores @ m[b].to(scores.dtype)
        pieces += [y[0][covered:begin], out if out_bias is None else out + out_bias.to(out.dtype)]
        covered = end
    return torch.cat([*pieces, y[0][covered:]])


def leaves(tensors, dtype, small=None):
    """The tensors as leaves, x in `dtype`, the others in `small` or the same."""
    return [None if t is None else t.detach().to(dtype if i == 0 else small or dtype).requires_grad_()
            for i, t in enumerate(tensors)]


def gradients_of(outputs, operands):
    generator = torch.Generator().manual_seed(99)
    loss = 0
    for out in outputs:
        direction = torch.randn(out.shape, generator=generator, dtype=torch.double).cuda()
        loss = loss + (torch.where(out.isfinite(), out, 0).double() * direction).sum()
    present = [t for t in operands if t is not None]
    return torch.autograd.grad(loss, present)


def in_reference(function, *arguments):
    torch.ops.dba.set_backend("reference")
    try:
        return function(*arguments)
    finally:
        torch.ops.dba.set_backend("fused")


def check(names, got, plain, truth, dtype):
    got, plain, truth = ([t.detach() for t in tensors] for tensors in (got, plain, truth))
    scale = max(float(t.double().nan_to_num(posinf=0, neginf=0).norm()) for t in truth)
    for name, a, b, exact in zip(names, got, plain, truth, strict=True):
        a, b, exact = a.double(), b.double(), exact.double()
        assert torch.equal(a.isinf(), exact.isinf()), name
        a, b, exact = (torch.where(exact.isinf(), 0, t) for t in (a, b, exact))
        assert bool(a.isfinite().all()), f"{name} is not finite"
        error, allowed = float((a - exact).norm()), 2 * float((b - exact).norm())
        floor = ROUNDING[dtype] * float(exact.norm()) + 1e-6 * scale
        assert error <= allowed + floor, f"{name}: off by {error:.3e}, plain PyTorch by {allowed / 2:.3e}"


def check_same_bits(names, first, second):
    for name, a, b in zip(names, first, second, strict=True):
        assert torch.equal(a, b), f"{name}: {int((a != b).sum())} of {a.numel()} numbers differ in a second run"


ROWS = {
    # each, shared, linear, bias, dropout, d
    "shared_192": (0, 192, 0, True, 0.0, 256),
    "each_and_shared": (128, 64, 0, True, 0.1, 256),
    "one_block_each": (64, 0, 0, False, 0.0, 256),
    "linear": (64, 64, 64, False, 0.25, 128),
    "linear_bias": (64, 64, 64, True, 0.25, 128),
    "uneven": (3, 4, 2, True, 0.0, 40),
    "many_rows": (130, 70, 65, True, 0.3, 64),
    "wide": (16, 16, 0, True, 0.0, 520),
    "odd_width": (5, 6, 0, True, 0.2, 37),
}


def compress_operands(case, scale=1.0):
    each, shared, linear, bias, p, d = ROWS[case]
    batch = Batch(LENGTHS)
    g = torch.Generator().manual_seed(1)
    make = lambda *shape, deviation: (torch.randn(*shape, generator=g, dtype=torch.double) * deviation).cuda()
    tensors = [
        batch.tokens(g, d, scale),
        make(len(batch), each, d, deviation=0.5 / d**0.5 * 2) if each else None,
        make(len(batch), each, deviation=0.5) if each and bias else None,
        make(shared, d, deviation=0.5 / d**0.5 * 2) if shared else None,
        make(shared, deviation=0.5) if shared and bias else None,
    ]
    return batch, tensors, linear, p


def run_compress(function, tensors):
    outputs = function(*tensors)
    return [*outputs, *gradients_of(outputs, tensors)]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("case,scale", [*((case, 1.0) for case in ROWS), ("shared_192", 30.0), ("uneven", 30.0)])
def test_compress(case, dtype, scale):
    if dtype == torch.float16 and scale > 1:
        pytest.skip("these gradients leave the range of float16")
    batch, tensors, linear, p = compress_operands(case, scale)
    rounded = [None if t is None else t.to(dtype).double() for t in tensors]
    rng = torch.tensor(RNG, device="cuda")
    fused = lambda x, each, each_bias, shared, shared_bias: torch.ops.dba.compress(
        x, batch.begin_tensor, batch.end_tensor, each, each_bias, shared, shared_bias, linear, p, rng)
    plain = lambda *t: plain_compress(t[0], batch, *t[1:], linear, p)
    names = ["c", "r", "lse", *(f"d{n}" for n, t in zip(("x", "each", "each_bias", "shared", "shared_bias"), tensors)
                                if t is not None)]
    got = run_compress(fused, leaves(rounded, dtype))
    same_precision = (in_reference(run_compress, fused, leaves(rounded, dtype)) if dtype == torch.float32 else
                      run_compress(plain, leaves(rounded, dtype)))
    check(names, got, same_precision, run_compress(plain, leaves(rounded, torch.double)), dtype)
    check_same_bits(names, got, run_compress(fused, leaves(rounded, dtype)))


RESTORES = {
    # heads, d_p, d, d_out, per sequence, linear, bias, dropout
    "text": (4, 16, 256, 256, False, False, True, 0.0),
    "text_dropout": (4, 16, 256, 256, False, False, True, 0.2),
    "image": (8, 16, 64, 64, False, False, True, 0.0),
    "one_slot": (4, 1, 64, 64, False, False, True, 0.0),
    "odd_slots": (3, 5, 64, 40, False, False, True, 0.1),
    "many_slots": (2, 256, 128, 128, False, False, False, 0.0),
    "many_heads": (32, 4, 128, 128, False, False, True, 0.0),
    "each": (2, 16, 64, 64, True, False, True, 0.1),
    "linear": (4, 16, 128, 128, False, True, True, 0.1),
    "odd_width": (2, 3, 37, 21, False, False, True, 0.0),
    "wide": (2, 16, 520, 300, False, False, True, 0.0),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("case", RESTORES)
def test_restore(case, dtype):
    heads, d_p, d, out, per_sequence, linear, bias, p = RESTORES[case]
    batch = Batch(LENGTHS)
    g = torch.Generator().manual_seed(2)
    make = lambda *shape, deviation=1.0: (torch.randn(*shape, generator=g, dtype=torch.double) * deviation).cuda()
    leading = (len(batch),) if per_sequence else ()
    slots = heads * d_p
    tensors = [batch.tokens(g, d), make(*leading, slots, d, deviation=1 / d**0.5),
               make(*leading, slots) if bias else None, make(len(batch), slots, out), make(out) if bias else None]
    rounded = [None if t is None else t.to(dtype).double() for t in tensors]
    rng = torch.tensor(RNG, device="cuda")
    fused = lambda x, rows, b, m, ob: torch.ops.dba.restore(
        x, batch.begin_tensor, batch.end_tensor, rows, b, m, ob, heads, linear, p, rng)
    plain = lambda x, rows, b, m, ob: plain_restore(x, batch, rows, b, m, ob, heads, linear, p)
    def run(function, operands):
        y = function(*operands)
        return [y, *gradients_of([y], operands)]
    names = ["y", *(f"d{n}" for n, t in zip(("x", "rows", "bias", "m", "out_bias"), tensors) if t is not None)]
    got = run(fused, leaves(rounded, dtype))
    check(names, got, run(plain, leaves(rounded, dtype)), run(plain, leaves(rounded, torch.double)), dtype)
    for _ in range(2):
        check_same_bits(names, got, run(fused, leaves(rounded, dtype)))
    outside = torch.ones(batch.rows, dtype=torch.bool)
    for begin, end in batch:
        outside[begin:end] = False
    assert not got[0][outside].any() and not got[1][outside].any()


def attention_operands(heads, d_p, d, d_in, per_sequence, released, lengths, generator):
    batch = Batch(lengths)
    make = lambda *shape, deviation=1.0: (
        torch.randn(*shape, generator=generator, dtype=torch.double) * deviation).cuda()
    slots, inner = heads * d_p, -(-d_in // heads)
    dynamic = slots if released else 2 * slots
    small = 1 / d**0.5
    rows = make(len(batch), dynamic, d, deviation=small) if per_sequence else make(dynamic, d, deviation=small)
    own = None if released else make(slots, d, deviation=small)
    each = rows if per_sequence else None
    shared = (own if per_sequence else rows if own is None else torch.cat([rows, own]))
    score = heads * inner if released else d
    weights = [make(score, d, deviation=small), make(score), make(score, d, deviation=small), make(score),
               make(d, d, deviation=small), make(d), None if released else make(heads, d // heads, inner, deviation=inner**-0.5),
               make(d, d, deviation=small) if released else None, make(d) if released else None,
               make(d) if released else None, make(d) if released else None, make(d, d, deviation=small), None]
    return batch, [batch.tokens(generator, d), each, None, shared, make(shared.shape[0]) if shared is not None else None,
                   make(slots, d, deviation=small), make(slots), make(d), *weights]


def run_attention(operands, batch, heads, p):
    rng = torch.tensor(RNG, device="cuda")
    x, each, each_bias, shared, shared_bias, restore_rows, restore_bias, out_bias, *weights = operands
    outputs = torch.ops.dba.attention(x, batch.begin_tensor, batch.end_tensor, each, each_bias, shared, shared_bias, 0,
                                      weights, restore_rows, restore_bias, out_bias, heads, False, p, rng)
    return [*outputs, *gradients_of(outputs, operands)]


ATTENTION_OPERANDS = ["x", "each", "each_bias", "shared", "shared_bias", "restore_rows", "restore_bias", "out_bias",
                      "query_weight", "query_bias", "key_weight", "key_bias", "value_weight", "value_bias", "width",
                      "compress_weight", "compress_bias", "norm_weight", "norm_bias", "out_weight", "other"]
LAYERS = {
    # heads, d_p, d, d_in, per sequence, released, dropout
    "text": (4, 16, 256, 24, False, False, 0.0),
    "text_each_dropout": (4, 16, 256, 24, True, False, 0.1),
    "text_released": (4, 16, 256, 24, False, True, 0.0),
    "released_each_dropout": (4, 16, 256, 24, True, True, 0.1),
    "image": (8, 16, 64, 24, True, False, 0.1),
    "odd": (2, 3, 36, 5, True, False, 0.1),
    "wide": (8, 32, 512, 64, True, False, 0.0),
}


def plain_attention(operands, batch, heads, p):
    """The passes in plain PyTorch and the operands' type, and the library's reference of `core` between them."""
    x, each, each_bias, shared, shared_bias, restore_rows, restore_bias, out_bias, *weights = operands
    c, r, _ = plain_compress(x, batch, each, each_bias, shared, shared_bias, 0, p)
    accumulation = torch.float64 if x.dtype == torch.float64 else torch.float32
    m, compressed = torch.ops.dba.core(c.to(accumulation), r.to(accumulation), weights, heads, p,
                                       torch.tensor(RNG, device="cuda"))
    y = plain_restore(x, batch, restore_rows, restore_bias, m.to(x.dtype), out_bias, heads, False, p)
    return [y, compressed, *gradients_of([y, compressed], operands)]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("case", LAYERS)
def test_attention(case, dtype):
    heads, d_p, d, d_in, per_sequence, released, p = LAYERS[case]
    generator = torch.Generator().manual_seed(3)
    batch, tensors = attention_operands(heads, d_p, d, d_in, per_sequence, released, LENGTHS, generator)
    rounded = [None if t is None else t.to(dtype).double() for t in tensors]
    names = ["y", "c", *(f"d{name}" for name, t in zip(ATTENTION_OPERANDS, tensors, strict=True) if t is not None)]
    got = run_attention(leaves(rounded, dtype), batch, heads, p)
    same_precision = in_reference(run_attention if dtype == torch.float32 else plain_attention,
                                  leaves(rounded, dtype), batch, heads, p)
    check(names, got, same_precision, in_reference(run_attention, leaves(rounded, torch.double), batch, heads, p), dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("case", ["text", "text_released", "odd"])
def test_attention_has_the_same_bits_without_gradients(case, dtype):
    heads, d_p, d, d_in, per_sequence, released, p = LAYERS[case]
    generator = torch.Generator().manual_seed(8)
    batch, tensors = attention_operands(heads, d_p, d, d_in, per_sequence, released, LENGTHS, generator)
    operands = leaves([None if t is None else t.to(dtype) for t in tensors], dtype)
    rng = torch.tensor(RNG, device="cuda")
    x, each, each_bias, shared, shared_bias, restore_rows, restore_bias, out_bias, *weights = operands
    run = lambda: torch.ops.dba.attention(x, batch.begin_tensor, batch.end_tensor, each, each_bias, shared, shared_bias,
                                          0, weights, restore_rows, restore_bias, out_bias, heads, False, p, rng)
    expected = run()
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(expected, run(), strict=True))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_thirty_repetitions_have_identical_bits(dtype):
    generator = torch.Generator().manual_seed(4)
    batch, tensors = attention_operands(4, 16, 128, 24, True, False, [3000, 1, 0, 500, 2000], generator)
    operands = leaves([None if t is None else t.to(dtype) for t in tensors], dtype)
    first = run_attention(operands, batch, 4, 0.1)
    for _ in range(30):
        assert all(torch.equal(a, b) for a, b in zip(first, run_attention(operands, batch, 4, 0.1), strict=True))


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_more_than_two_to_the_31_elements(dtype):
    rows, d = (1 << 23) + 1000, 256
    if torch.cuda.mem_get_info()[0] < 6 * rows * d * 4:
        pytest.skip("needs about 50 GB of free GPU memory")
    x = torch.randn(rows, d, device="cuda", dtype=dtype)
    begin, end = torch.tensor([0, rows - 777], device="cuda"), torch.tensor([rows - 777, rows], device="cuda")
    shared = torch.randn(64, d, device="cuda").to(dtype) / 16
    c, r, lse = torch.ops.dba.compress(x, begin, end, None, None, shared, None, 0, 0.0, None)
    tail = x[rows - 777:].double()
    exact = torch.softmax(shared.double() @ tail.t(), 1) @ tail
    assert float((c[1].double() - exact).norm() / exact.norm()) < 4 * ROUNDING[dtype]
    m = torch.randn(2, 64, d, device="cuda")
    y = torch.ops.dba.restore(x, begin, end, shared, None, m, None, 4, False, 0.0, None)
    weights = torch.softmax((tail @ shared.double().t()).unflatten(1, (4, 16)), 2).flatten(1)
    exact = weights @ m[1].double()
    assert float((y[rows - 777:].double() - exact).norm() / exact.norm()) < 4 * ROUNDING[dtype]


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
