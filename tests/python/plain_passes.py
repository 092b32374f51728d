"""The two passes in plain PyTorch, sequence by sequence, and what tests of the CUDA kernels share.

The truth is the algebra in float64. A kernel may be off by at most twice what the algebra in plain PyTorch (float32:
that or the library's reference, which like the kernels recomputes weights from a rounded log-sum-exp) is off in the
kernel's own precision, plus one rounding of the result.
"""

import os

import pytest
import torch
from loaded_library import CUDA_LIBRARY

os.environ.setdefault("DBA_POISON_SCRATCH", "1")  # read by the library when it first takes scratch memory

needs_gpu = pytest.mark.skipif(
    not (torch.cuda.is_available() and CUDA_LIBRARY.exists()), reason="needs a CUDA GPU and libdba_cuda")

ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-22}
TYPES = list(ROUNDING)
LENGTHS = [0, 1, 17, 63, 0, 64, 100, 129, 700]
RNG = (1234567, (5 << 32) + 77)


def poison_memory():
    """Leaves NaN in the memory that PyTorch hands out next."""
    blocks = [torch.full((1 << size,), float("nan"), device="cuda") for size in range(9, 23) for _ in range(4)]
    del blocks


@pytest.fixture(params=["auto", "general"])
def kernels(request):
    """Both sets of kernels after one another, in memory full of NaN; a fall-back to the reference is an error."""
    poison_memory()
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
               make(d, d, deviation=small), make(d),
               None if released else make(heads, d // heads, inner, deviation=inner**-0.5),
               make(d, d, deviation=small) if released else None, make(d) if released else None,
               make(d) if released else None, make(d) if released else None, make(d, d, deviation=small), None]
    x = batch.tokens(generator, d)
    shared_bias = None if shared is None else make(shared.shape[0])
    return batch, [x, each, None, shared, shared_bias, make(slots, d, deviation=small), make(slots), make(d), *weights]


def run_attention(operands, batch, heads, p):
    rng = torch.tensor(RNG, device="cuda")
    x, each, each_bias, shared, shared_bias, restore_rows, restore_bias, out_bias, *weights = operands
    outputs = torch.ops.dba.attention(x, batch.begin_tensor, batch.end_tensor, each, each_bias, shared, shared_bias, 0,
                                      weights, restore_rows, restore_bias, out_bias, heads, False, p, rng)
    return [*outputs, *gradients_of(outputs, operands)]
