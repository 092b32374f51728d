"""The fused CUDA kernels against the same algebra in plain PyTorch: values and all gradients."""

import pytest
import torch
from error_rule import check
from plain_passes import (DEVICE, LENGTHS, RNG, TYPES, Batch, attention_operands, check_same_bits, gradients_of,
                          in_reference, kernels, leaves, needs_gpu, plain_compress, plain_core, plain_restore,
                          run_attention)

__all__ = ["kernels"]
pytestmark = [needs_gpu, pytest.mark.usefixtures("kernels")]


ROWS = {
    # each, shared, linear, bias, dropout, d
    "shared_192": (0, 192, 0, True, 0.0, 256),
    "each_and_shared": (128, 64, 0, True, 0.1, 256),
    "one_block_each": (64, 0, 0, False, 0.0, 256),
    "half_width": (64, 64, 0, True, 0.0, 128),
    "quarter_width": (64, 64, 0, True, 0.0, 64),
    "linear": (64, 64, 64, False, 0.25, 128),
    "linear_bias": (64, 64, 64, True, 0.25, 128),
    "uneven": (3, 4, 2, True, 0.0, 40),
    "many_rows": (130, 70, 65, True, 0.3, 64),
    "wide": (16, 16, 0, True, 0.0, 520),
    "two_wide_tiles": (48, 80, 40, True, 0.2, 512),
    "steps_of_two_wide_tiles": (100, 156, 30, True, 0.1, 400),
    "not_quite_two_wide_tiles": (70, 3, 2, True, 0.1, 328),
    "odd_width_of_two_tiles": (20, 50, 9, True, 0.1, 301),
    "odd_width": (5, 6, 0, True, 0.2, 37),
    "narrowest": (3, 5, 0, True, 0.1, 16),
    "widest": (8, 16, 0, True, 0.0, 1024),
}


# So many tokens that a thread block's range has a thousand of them, and sums over it are long.
LONG_RANGES = [1500] * 200
# A thread block's range has some hundred tokens of a few sequences, where there are 256 slots.
SEVERAL_TILES = [1500, 0, 900, 130, 2300]
# More sequences than a thread block looks through in one round, 384 at most.
HUNDREDS = [7 * i % 23 for i in range(450)]


def compress_operands(case, scale, lengths):
    each, shared, linear, bias, p, d = ROWS[case]
    batch = Batch(lengths)
    g = torch.Generator().manual_seed(1)
    make = lambda *shape, deviation: (torch.randn(*shape, generator=g, dtype=torch.double) * deviation).to(DEVICE)
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
    check_compress(case, dtype, scale, LENGTHS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("lengths", [LONG_RANGES, HUNDREDS], ids=["long_ranges", "hundreds"])
def test_compress_of_other_batches(lengths, dtype):
    check_compress("quarter_width", dtype, 1.0, lengths)


@pytest.mark.parametrize("dtype,scale", [(torch.bfloat16, 1.0), (torch.bfloat16, 30.0), (torch.float16, 1.0)], ids=str)
def test_compress_by_several_steps_of_two_wide_tiles(dtype, scale):
    check_compress("steps_of_two_wide_tiles", dtype, scale, SEVERAL_TILES)


def check_compress(case, dtype, scale, lengths):
    batch, tensors, linear, p = compress_operands(case, scale, lengths)
    rounded = [None if t is None else t.to(dtype).double() for t in tensors]
    rng = torch.tensor(RNG, device=DEVICE)
    fused = lambda x, each, each_bias, shared, shared_bias: torch.ops.dba.compress(
        x, batch.begin_tensor, batch.end_tensor, each, each_bias, shared, shared_bias, linear, p, rng)
    plain = lambda *t: plain_compress(t[0], batch, *t[1:], linear, p)
    names = ["c", "r", "lse", *(f"d{n}" for n, t in zip(("x", "each", "each_bias", "shared", "shared_bias"), tensors)
                                if t is not None)]
    got = run_compress(fused, leaves(rounded, dtype))
    same_precision = (in_reference(run_compress, fused, leaves(rounded, dtype)) if dtype == torch.float32 else
                      run_compress(plain, leaves(rounded, dtype)))
    check(names, [(got, same_precision, run_compress(plain, leaves(rounded, torch.double)))], dtype)
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
    "two_wide_tiles": (8, 16, 512, 512, False, False, True, 0.1),
    "one_unit_of_two_wide_tiles": (2, 9, 72, 301, True, False, True, 0.0),
    "many_slots_of_two_wide_tiles": (3, 100, 64, 400, False, False, True, 0.1),
    "linear_of_two_wide_tiles": (2, 40, 96, 328, True, True, True, 0.2),
    "one_head": (1, 16, 16, 16, False, False, True, 0.1),
    "widest": (2, 8, 1024, 1024, False, False, True, 0.0),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("case", RESTORES)
def test_restore(case, dtype):
    check_restore(case, dtype, LENGTHS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("lengths", [LONG_RANGES, HUNDREDS], ids=["long_ranges", "hundreds"])
def test_restore_of_other_batches(lengths, dtype):
    check_restore("image", dtype, lengths)


def check_restore(case, dtype, lengths):
    heads, d_p, d, out, per_sequence, linear, bias, p = RESTORES[case]
    batch = Batch(lengths)
    g = torch.Generator().manual_seed(2)
    make = lambda *shape, deviation=1.0: (torch.randn(*shape, generator=g, dtype=torch.double) * deviation).to(DEVICE)
    leading = (len(batch),) if per_sequence else ()
    slots = heads * d_p
    tensors = [batch.tokens(g, d), make(*leading, slots, d, deviation=1 / d**0.5),
               make(*leading, slots) if bias else None, make(len(batch), slots, out), make(out) if bias else None]
    rounded = [None if t is None else t.to(dtype).double() for t in tensors]
    rng = torch.tensor(RNG, device=DEVICE)
    fused = lambda x, rows, b, m, ob: torch.ops.dba.restore(
        x, batch.begin_tensor, batch.end_tensor, rows, b, m, ob, heads, linear, p, rng)
    plain = lambda x, rows, b, m, ob: plain_restore(x, batch, rows, b, m, ob, heads, linear, p)
    def run(function, operands):
        y = function(*operands)
        return [y, *gradients_of([y], operands)]
    names = ["y", *(f"d{n}" for n, t in zip(("x", "rows", "bias", "m", "out_bias"), tensors) if t is not None)]
    got = run(fused, leaves(rounded, dtype))
    same_precision = (in_reference(run, fused, leaves(rounded, dtype)) if dtype == torch.float32 else
                      run(plain, leaves(rounded, dtype)))
    # The softmax of one slot is 1, whatever the score: m̃ ∘ (dY Mᵀ) cancels, which is as large as dM is.
    vanishing = dict.fromkeys(["dx", "drows", "dbias"], "dm") if d_p == 1 else None
    check(names, [(got, same_precision, run(plain, leaves(rounded, torch.double)))], dtype, vanishing)
    for _ in range(2):
        check_same_bits(names, got, run(fused, leaves(rounded, dtype)))
    outside = torch.ones(batch.rows, dtype=torch.bool)
    for begin, end in batch:
        outside[begin:end] = False
    assert not got[0][outside].any() and not got[1][outside].any()


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
    "listops_dropout": (8, 16, 512, 24, False, False, 0.1),
    "one_slot_of_one_head": (1, 1, 16, 5, True, False, 0.1),
}


def plain_attention(operands, batch, heads, p):
    """The layer in plain PyTorch with the roundings that its products need."""
    x, each, each_bias, shared, shared_bias, restore_rows, restore_bias, out_bias, *weights = operands
    c, r, _ = plain_compress(x, batch, each, each_bias, shared, shared_bias, 0, p)
    m, compressed = plain_core(c, r, weights, heads, p)
    y = plain_restore(x, batch, restore_rows, restore_bias, m, out_bias, heads, False, p)
    return [y, compressed, *gradients_of([y, compressed], operands)]


def vanishing_gradients(d_p):
    """Those that are 0 in exact arithmetic or nearly so, and the gradients that are summed from the same terms."""
    found = {
        "dshared_bias": "dshared",  # a softmax over the tokens does not see what is added to all scores of a row
        # Nor do the slots' queries see what is added to all keys: a bias, in form `paper` times r, which is 1 but for
        # dropout and hardly differs from slot to slot with it.
        "dkey_bias": "dkey_weight",
    }
    if d_p == 1:  # the softmax of one slot is 1, in restore and between the slots, whatever the score
        found |= {"drestore_rows": "dx", "drestore_bias": "dx"}
        found |= dict.fromkeys(["dkey_weight", "dkey_bias", "dwidth"], "dvalue_weight")
    return found


def check_attention(case, dtype, lengths):
    heads, d_p, d, d_in, per_sequence, released, p = LAYERS[case]
    # What float32 errs by is mostly the rounding of the largest scores between slots, which are few in a sequence.
    draws = []
    for seed in range(3, 11 if dtype == torch.float32 else 6):
        generator = torch.Generator().manual_seed(seed)
        batch, tensors = attention_operands(heads, d_p, d, d_in, per_sequence, released, lengths, generator)
        rounded = [None if t is None else t.to(dtype).double() for t in tensors]
        got = run_attention(leaves(rounded, dtype), batch, heads, p)
        same_precision = (in_reference(run_attention, leaves(rounded, dtype), batch, heads, p)
                          if dtype == torch.float32 else plain_attention(leaves(rounded, dtype), batch, heads, p))
        draws.append((got, same_precision, in_reference(run_attention, leaves(rounded, torch.double), batch, heads, p)))
    names = ["y", "c", *(f"d{name}" for name, t in zip(ATTENTION_OPERANDS, tensors, strict=True) if t is not None)]
    check(names, draws, dtype, vanishing_gradients(d_p))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("case", LAYERS)
def test_attention(case, dtype):
    check_attention(case, dtype, LENGTHS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("lengths", [[6000], [2500, 0, 2500], HUNDREDS], ids=["one", "few", "hundreds"])
def test_attention_over_other_batches(lengths, dtype):
    if lengths is HUNDREDS and dtype != torch.float32:
        pytest.skip("the plain layer takes a minute for so many sequences; the passes have tests of their own")
    check_attention("text", dtype, lengths)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [8, 64])
def test_scores_of_ten_thousand(width, dtype):
    """Tokens in quarters and rows in multiples of 2,560: every score is exact in float32, and reaches ±1e4."""
    g = torch.Generator().manual_seed(12)
    batch = Batch([1, 37, 0, 100, 700])
    make = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.double).to(DEVICE)
    x, rows = batch.tokens(g, width), make(12, width)
    x[:, :8], x[:, 8:] = (x[:, :8] * 2).round().clamp(-2, 2) / 4, torch.where(x[:, 8:].isnan(), x[:, 8:], 0)
    rows[:, :8], rows[:, 8:] = (rows[:, :8] * 2).round().clamp(-4, 4) * 2560, 0
    operands = [x, rows, make(len(batch), 12, 8).to(dtype).double()]
    assert x.nan_to_num().matmul(rows.t()).abs().max() > 1e4

    def run(compress, restore, operands):
        x, rows, m = operands
        outputs = [*compress(x, rows), restore(x, rows, m)]
        return [*outputs, *gradients_of(outputs, operands)]

    begin, end = batch.begin_tensor, batch.end_tensor
    fused = (lambda x, rows: torch.ops.dba.compress(x, begin, end, None, None, rows, None, 0, 0.0, None),
             lambda x, rows, m: torch.ops.dba.restore(x, begin, end, rows, None, m, None, 3, False, 0.0, None))
    plain = (lambda x, rows: plain_compress(x, batch, None, None, rows, None, 0, 0.0),
             lambda x, rows, m: plain_restore(x, batch, rows, None, m, None, 3, False, 0.0))
    got = run(*fused, leaves(operands, dtype))
    reference = (in_reference(run, *fused, leaves(operands, dtype)) if dtype == torch.float32 else
                 run(*plain, leaves(operands, dtype)))
    names = ["c", "r", "lse", "y", "dx", "drows", "dm"]
    known = len(names) if dtype != torch.float16 else 4  # gradients times such rows leave the range of float16
    draw = (got, reference, run(*plain, leaves(operands, torch.double)))
    check(names[:known], [[results[:known] for results in draw]], dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("case", ["text", "text_released", "odd"])
def test_attention_has_the_same_bits_without_gradients(case, dtype):
    heads, d_p, d, d_in, per_sequence, released, p = LAYERS[case]
    generator = torch.Generator().manual_seed(8)
    batch, tensors = attention_operands(heads, d_p, d, d_in, per_sequence, released, LENGTHS, generator)
    operands = leaves([None if t is None else t.to(dtype) for t in tensors], dtype)
    rng = torch.tensor(RNG, device=DEVICE)
    x, each, each_bias, shared, shared_bias, restore_rows, restore_bias, out_bias, *weights = operands
    run = lambda: torch.ops.dba.attention(x, batch.begin_tensor, batch.end_tensor, each, each_bias, shared, shared_bias,
                                          0, weights, restore_rows, restore_bias, out_bias, heads, False, p, rng)
    expected = run()
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(expected, run(), strict=True))
