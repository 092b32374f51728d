"""The two passes in plain PyTorch, sequence by sequence, and what tests of the CUDA kernels share.

With operands in float64 they are the truth. With operands of a half type they are the reference of error_rule.py: the
factors of products are rounded to that type, all else is float32. DBA_TEST_DEVICE=cpu runs the same cases through the
CPU's passes.
"""

import os

import pytest
import torch
from loaded_library import CUDA_LIBRARY

os.environ.setdefault("DBA_POISON_SCRATCH", "1")  # read by the library when it first takes scratch memory

DEVICE = os.environ.get("DBA_TEST_DEVICE", "cuda")
needs_gpu = pytest.mark.skipif(
    DEVICE == "cuda" and not (torch.cuda.is_available() and CUDA_LIBRARY.exists()),
    reason="needs a CUDA GPU and libdba_cuda")

TYPES = [torch.bfloat16, torch.float16, torch.float32]
LENGTHS = [0, 1, 17, 63, 0, 64, 100, 129, 700]
RNG = (1234567, (5 << 32) + 77)


def poison_memory():
    """Leaves NaN in the GPU's memory that PyTorch hands out next."""
    if DEVICE != "cuda":
        return
    blocks = [torch.full((1 << size,), float("nan"), device=DEVICE) for size in range(9, 23) for _ in range(4)]
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
        self.begin_tensor = torch.tensor(self.begin, device=DEVICE)
        self.end_tensor = torch.tensor(self.end, device=DEVICE)

    def __len__(self):
        return len(self.begin)

    def __iter__(self):
        return iter(zip(self.begin, self.end, strict=True))

    def tokens(self, generator, width, scale=1.0):
        """Rows of nobody hold NaN."""
        x = torch.full((self.rows, width), float("nan"), dtype=torch.double)
        for begin, end in self:
            x[begin:end] = scale * torch.randn(end - begin, width, generator=generator, dtype=torch.double)
        return x.to(DEVICE)


def mask(p, site, sequence, tokens, slots, like):
    if p == 0 or tokens == 0:
        return torch.ones(tokens, slots, dtype=like.dtype, device=DEVICE)
    rng = torch.tensor(RNG, device=DEVICE)
    first = torch.zeros(1, dtype=torch.long, device=DEVICE)
    return torch.ops.dba.dropout_mask(rng, p, site, first + sequence, first, tokens, slots, torch.float64)[0].to(like)


class RoundedProduct(torch.autograd.Function):
    """a b as tensor cores multiply: factors of a half type, sums in float32; forward and backward. The gradient of a
    takes `of_backward` for b where it is given."""

    @staticmethod
    def forward(ctx, a, b, dtype, of_backward):
        a, b = a.to(dtype), b.to(dtype)
        ctx.save_for_backward(a, b if of_backward is None else of_backward.to(dtype))
        return a.float() @ b.float()

    @staticmethod
    def backward(ctx, gradient):
        (a, b), rounded = ctx.saved_tensors, gradient.to(ctx.saved_tensors[0].dtype).float()
        return rounded @ b.float().t(), a.float().t() @ rounded, None, None


def product(a, b, dtype, of_backward=None):
    return RoundedProduct.apply(a, b, dtype, of_backward) if dtype in (torch.bfloat16, torch.float16) else a @ b


def widened(*tensors):
    return [t if t is None or t.dtype == torch.float64 else t.float() for t in tensors]


def plain_compress(x, batch, each, each_bias, shared, shared_bias, linear, p):
    dtype = x.dtype
    x, each, each_bias, shared, shared_bias = widened(x, each, each_bias, shared, shared_bias)
    c, r, lse = [], [], []
    for b, (begin, end) in enumerate(batch):
        tokens = x[begin:end]
        rows = torch.cat([t for t in (each[b] if each is not None else None, shared) if t is not None])
        scores = product(tokens, rows.t(), dtype)
        if each_bias is not None:
            scores[:, :each_bias.shape[1]] += each_bias[b]
        if shared_bias is not None:
            scores[:, -shared_bias.shape[0]:] += shared_bias
        steep = rows.shape[0] - linear
        weights = torch.cat([torch.softmax(scores[:, :steep], 0), scores[:, steep:] / max(end - begin, 1)], 1)
        weights = weights * mask(p, 0, b, end - begin, rows.shape[0], weights)
        c.append(product(weights.t(), tokens, dtype))
        r.append(weights.sum(0))
        if end > begin:
            log_length = torch.full((linear,), float(end - begin), dtype=x.dtype, device=DEVICE).log()
            lse.append(torch.cat([torch.logsumexp(scores[:, :steep], 0), log_length]))
        else:
            lse.append(torch.full((rows.shape[0],), -torch.inf, dtype=x.dtype, device=DEVICE))
    return torch.stack(c), torch.stack(r), torch.stack(lse)


def plain_restore(x, batch, rows, bias, m, out_bias, heads, linear, p):
    dtype = x.dtype
    x, rows, bias, m, out_bias = widened(x, rows, bias, m, out_bias)
    nobody = torch.zeros(batch.rows, m.shape[2], dtype=x.dtype, device=DEVICE)
    pieces, covered = [], 0
    for b, (begin, end) in enumerate(batch):
        scores = product(x[begin:end], (rows[b] if rows.dim() == 3 else rows).t(), dtype)
        if bias is not None:
            scores = scores + (bias[b] if bias.dim() == 2 else bias)
        if not linear:
            scores = torch.softmax(scores.unflatten(1, (heads, -1)), 2).flatten(1)
        scores = scores * mask(p, 2, b, end - begin, scores.shape[1], scores)
        # What all rows of a head have in common does not pass the softmax, and goes before the rest is rounded.
        by_head = m[b].unflatten(0, (heads, -1))
        centred = (by_head - by_head.mean(1, keepdim=True)).flatten(0, 1) if not linear and p == 0 else None
        out = product(scores, m[b], dtype, centred)
        pieces += [nobody[covered:begin], out if out_bias is None else out + out_bias]
        covered = end
    return torch.cat([*pieces, nobody[covered:]]).to(dtype)


def tensor_float(numbers):
    """Rounded to the 11 bits of TF32 and float16, and back; gradients pass."""
    bits = numbers.detach().view(torch.int32)
    return numbers + (((bits + 0x1000) & ~0x1fff).view(torch.float32) - numbers.detach())


def plain_core(c, r, weights, heads, p):
    """`core` of self-attention in float32, form `paper` or `released`. What the slots of a head multiply with each
    other are numbers of 11 bits, as many as float16 has and more than bfloat16."""
    (query_weight, query_bias, key_weight, key_bias, value_weight, value_bias, width, compress_weight, compress_bias,
     norm_weight, norm_bias, out_weight, _) = widened(*weights)
    batch = c.shape[0]

    def lift(group, weight, bias):  # (B, d_p, H·w): those slots' summaries, each through its head's rows of the weight
        summary, sums = (t.unflatten(1, (-1, heads, t.shape[1] // (1 if compress_weight is not None else 3) // heads))
                         [:, group] for t in (c, r))
        lifted = summary @ weight.unflatten(0, (heads, -1)).transpose(1, 2)
        lifted = lifted if bias is None else lifted + sums[..., None] * bias.view(heads, 1, -1)
        return lifted.transpose(1, 2).flatten(2)

    if compress_weight is None:
        compressed = queries = lift(0, query_weight, query_bias)
        keys, values = lift(1, key_weight, key_bias), lift(2, value_weight, value_bias)
    else:
        compressed = lift(0, compress_weight, compress_bias)
        queries, keys, values = (torch.nn.functional.linear(compressed, *of) for of in (
            (query_weight, query_bias), (key_weight, key_bias), (value_weight, value_bias)))
    q, k, v = (t.unflatten(2, (heads, -1)).transpose(1, 2) for t in (queries, keys, values))
    if width is not None:
        q, k = q @ width, k @ width
    weights = torch.softmax(tensor_float(q) @ tensor_float(k).transpose(2, 3) * q.shape[3]**-0.5, 3)
    slots = weights.shape[3]
    weights = weights * torch.stack([mask(p, 1, b, slots, heads * slots, weights).t().unflatten(0, (heads, slots))
                                     for b in range(batch)])
    mixed = (tensor_float(weights) @ tensor_float(v)).transpose(1, 2).flatten(2)
    if norm_weight is not None:
        mixed = torch.nn.functional.layer_norm(mixed, mixed.shape[2:], norm_weight, norm_bias)
    of_head = out_weight.unflatten(1, (heads, -1)).permute(1, 2, 0)
    m = mixed.unflatten(2, (heads, -1)).transpose(1, 2) @ of_head
    return m.flatten(1, 2), compressed


def leaves(tensors, dtype, small=None):
    """The tensors as leaves, x in `dtype`, the others in `small` or the same."""
    return [None if t is None else t.detach().to(dtype if i == 0 else small or dtype).requires_grad_()
            for i, t in enumerate(tensors)]


def gradients_of(outputs, operands):
    generator = torch.Generator().manual_seed(99)
    loss = 0
    for out in outputs:
        direction = torch.randn(out.shape, generator=generator, dtype=torch.double).to(DEVICE)
        loss = loss + (torch.where(out.isfinite(), out, 0).double() * direction).sum()
    present = [t for t in operands if t is not None]
    return torch.autograd.grad(loss, present)


def in_reference(function, *arguments):
    torch.ops.dba.set_backend("reference")
    try:
        return function(*arguments)
    finally:
        torch.ops.dba.set_backend("fused")


def check_same_bits(names, first, second):
    for name, a, b in zip(names, first, second, strict=True):
        assert torch.equal(a, b), f"{name}: {int((a != b).sum())} of {a.numel()} numbers differ in a second run"


def attention_operands(heads, d_p, d, d_in, per_sequence, released, lengths, generator):
    batch = Batch(lengths)
    make = lambda *shape, deviation=1.0: (
        torch.randn(*shape, generator=generator, dtype=torch.double) * deviation).to(DEVICE)
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
    rng = torch.tensor(RNG, device=DEVICE)
    x, each, each_bias, shared, shared_bias, restore_rows, restore_bias, out_bias, *weights = operands
    outputs = torch.ops.dba.attention(x, batch.begin_tensor, batch.end_tensor, each, each_bias, shared, shared_bias, 0,
                                      weights, restore_rows, restore_bias, out_bias, heads, False, p, rng)
    return [*outputs, *gradients_of(outputs, operands)]
