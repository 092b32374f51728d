"""Calls the CUDA operators, forward and backward where they have one, for compute-sanitizer (scripts/check_gpu.sh).

Operands are made on the CPU and copied over, results are copied back before anybody looks at them: no kernel but ours
writes what ours read, and none but ours reads what ours write. All that is asked of a result is that it is finite; that
it is right is for the tests to say.

    compute-sanitizer --tool racecheck python3 tests/python/sanitized_calls.py general --types float32
"""

import argparse
import itertools
import sys
import typing

import torch
from plain_passes import CUDA_LIBRARY, RNG, Batch, attention_operands, leaves

LENGTHS = [257, 0, 1, 300, 64, 63, 1000]
HEADS, D_P, SLOTS = 4, 16, 64


class Case(typing.NamedTuple):
    kernels: str
    operator: str
    dtype: torch.dtype
    released: bool
    p: float

    def __str__(self):
        form = "released" if self.released else "paper"
        return (f"{self.operator:13} {str(self.dtype).removeprefix('torch.'):8} {self.kernels:7} "
                f"{form if self.operator in WITH_FORMS else '':8} dropout {self.p}")


class Operands:
    """Makes them one by one, and remembers those that have a gradient."""

    def __init__(self, dtype):
        self.generator = torch.Generator().manual_seed(3)
        self.dtype, self.made = dtype, []
        self.rng = torch.tensor(RNG, device="cuda")

    def __call__(self, *shape, deviation=1.0, dtype=None):
        drawn = deviation * torch.randn(*shape, generator=self.generator)
        self.made.append(drawn.to(dtype or self.dtype).cuda().requires_grad_())
        return self.made[-1]

    def of_a_layer(self, released):
        """Width 256; rows of each sequence, and in form `paper` rows that all share."""
        batch, tensors = attention_operands(HEADS, D_P, 256, 24, True, released, LENGTHS, self.generator)
        copies = [None if t is None else t.cpu().to(self.dtype).cuda() for t in tensors]
        self.made = leaves(copies, self.dtype)
        return batch, self.made


def attention(make, case):
    batch, operands = make.of_a_layer(case.released)
    x, each, each_bias, shared, shared_bias, restore_rows, restore_bias, out_bias, *weights = operands
    return torch.ops.dba.attention(x, batch.begin_tensor, batch.end_tensor, each, each_bias, shared, shared_bias, 0,
                                   weights, restore_rows, restore_bias, out_bias, HEADS, False, case.p, make.rng)


def core(make, case):
    weights = make.of_a_layer(case.released)[1][8:]
    make.made = [*weights]
    rows = SLOTS if case.released else 3 * SLOTS
    c = make(len(LENGTHS), rows, 256, dtype=torch.float32)
    r = make(len(LENGTHS), rows, dtype=torch.float32)
    return torch.ops.dba.core(c, r, weights, HEADS, case.p, make.rng)


def compress(make, case):
    """Width 64, rows of each sequence and shared ones; with dropout half of the latter are linear."""
    batch = Batch(LENGTHS)
    linear = SLOTS // 2 if case.p else 0
    return torch.ops.dba.compress(make(batch.rows, 64), batch.begin_tensor, batch.end_tensor,
                                  make(len(batch), SLOTS, 64, deviation=0.1), make(len(batch), SLOTS),
                                  make(SLOTS, 64, deviation=0.1), make(SLOTS), linear, case.p, make.rng)


def restore(make, case):
    """Width 64; the general kernels have rows of each sequence, which those of Hopper do not take."""
    batch = Batch(LENGTHS)
    of_each = [len(batch)] if case.kernels == "general" else []
    return [torch.ops.dba.restore(make(batch.rows, 64), batch.begin_tensor, batch.end_tensor,
                                  make(*of_each, SLOTS, 64, deviation=0.1), make(*of_each, SLOTS),
                                  make(len(batch), SLOTS, 64), make(64), HEADS, bool(case.p), case.p, make.rng)]


def residual_norm(make, case):
    sums = torch.ops.dba.residual_norm(make(301, 256), make(301, 256), make(256), make(256), make(256), 1e-5, case.p,
                                       make.rng, bool(case.p), None)
    return sums[:2] if case.p else sums[1:2]


def residual_sum(make, case):
    return [torch.ops.dba.residual_sum(make(301, 256), make(301, 256), make(256), case.p, make.rng)]


def gelu(make, case):
    return [torch.ops.dba.activate(make(301, 1040), make(1040), "gelu", case.p, make.rng)]


def relu(make, case):
    return [torch.ops.dba.activate(make(301, 1040), make(1040), "relu", case.p, make.rng)]


def fold(make, case):
    return torch.ops.dba.fold(make(len(LENGTHS), D_P, 256), make(256, 256, deviation=0.1), make(256), HEADS, 0.5)


def fold_stack(make, case):
    weights = [make(256, 256, deviation=0.1), make(256, 256, deviation=0.1)]
    return torch.ops.dba.fold_stack(make(D_P, 256), weights, [None, None], make(SLOTS, 256), make(SLOTS), HEADS, 0.5)


def sums_beyond(make, case):
    return [torch.ops.dba.sums_beyond(make(3, 21, 33, 65).detach(), 1, 3)]


def code_agreement(make, case):
    codes = torch.randint(0, 4, (2, 70, 65), generator=make.generator).to(torch.int16).cuda()
    return [torch.ops.dba.code_agreement(codes[:, :, :33], codes[:, 1:34], case.dtype)]


def real_spectrum(make, case):
    half = torch.complex(make(2, 33, 65).detach().float(), make(2, 33, 65).detach().float())
    return [torch.ops.dba.real_spectrum(half, 129, case.dtype)]


def elu_plus_one(make, case):
    x = make(1003).detach()[1:]
    feature = torch.ops.dba.elu_plus_one_forward(x)
    return [feature, torch.ops.dba.elu_plus_one_backward(x, feature)]


def both_passes(make, case, width, heads=HEADS, score_rows=SLOTS, linear=0):
    """Each over tokens of its own: nobody adds up their gradients, which cuBLAS may have written by the copy engine."""
    batch = Batch(LENGTHS)
    bounds, slots = (batch.begin_tensor, batch.end_tensor), heads * D_P
    c, r, _ = torch.ops.dba.compress(make(batch.rows, width), *bounds, None, None,
                                     make(score_rows, width, deviation=0.1), make(score_rows), linear, case.p, make.rng)
    y = torch.ops.dba.restore(make(batch.rows, width), *bounds, make(slots, width, deviation=0.1), make(slots),
                              make(len(batch), slots, width), make(width), heads, False, case.p, make.rng)
    return [c, r, y]


def odd_width(make, case):
    """Rows of 50 numbers, which begin at no multiple of 16 bytes."""
    return both_passes(make, case, 50)


def two_wide_tiles(make, case):
    """Rows that blocks of eight warps take in the half types: both of their sides, and so many score rows that a range
    has several tiles."""
    return both_passes(make, case, 408, heads=2 * HEADS, score_rows=10 * SLOTS, linear=SLOTS + 5)


def tf32(make, case):
    """A layer whose products in float32 PyTorch's switch lets round to TF32."""
    return attention(make, case)


OPERATORS = {f.__name__: f for f in (attention, core, compress, restore, residual_norm, residual_sum, gelu, relu, fold,
                                     fold_stack, sums_beyond, code_agreement, real_spectrum, elu_plus_one, odd_width,
                                     two_wide_tiles, tf32)}
WITH_FORMS = ("attention", "core")
WITHOUT_GRADIENT = ("sums_beyond", "code_agreement", "real_spectrum", "elu_plus_one")
WITHOUT_DROPOUT = ("fold", "fold_stack", *WITHOUT_GRADIENT)
GENERAL_ALONE = ("odd_width", "two_wide_tiles", "tf32")  # what the general kernels serve on every GPU


def cases(chosen):
    for kernels, operator, dtype in itertools.product(chosen.kernels, chosen.operators, chosen.types):
        if (operator in GENERAL_ALONE and kernels != "general") or (operator == "tf32" and dtype != "float32"):
            continue
        forms = chosen.forms if operator in WITH_FORMS else ["paper"]
        rates = [0.0] if operator in WITHOUT_DROPOUT else chosen.dropout
        for form, p in itertools.product(forms, rates):
            yield Case(kernels, operator, getattr(torch, dtype), form == "released", p)


def call(case):
    """Ends the program where a result is not finite."""
    torch.ops.dba.set_cuda_kernels(case.kernels)
    torch.backends.cuda.matmul.allow_tf32 = case.operator == "tf32"  # until the gradients are there
    make = Operands(case.dtype)
    outputs = OPERATORS[case.operator](make, case)
    directions = [torch.randn(out.shape, generator=make.generator).to(out.dtype).cuda() for out in outputs]
    made = [t for t in make.made if t is not None and case.operator not in WITHOUT_GRADIENT]
    gradients = torch.autograd.grad(outputs, made, directions) if made else ()
    torch.cuda.synchronize()
    results = [t.detach().cpu() for t in (*outputs, *gradients)]
    for index, result in enumerate(results):
        minus_infinity = result == -torch.inf if case.operator == "compress" else False  # lse of the empty sequence
        if not bool((result.isfinite() | minus_infinity).all()):
            sys.exit(f"sanitized_calls.py: {case}: result {index} of {len(results)} is not finite")


def main():
    parser = argparse.ArgumentParser(description="Calls the CUDA operators, forward and backward.")
    parser.add_argument("kernels", nargs="+", choices=["auto", "general"], help="which kernels serve")
    parser.add_argument("--operators", nargs="+", choices=OPERATORS, default=list(OPERATORS))
    parser.add_argument("--forms", nargs="+", choices=["paper", "released"], default=["paper", "released"])
    parser.add_argument("--dropout", nargs="+", type=float, default=[0.0, 0.1])
    types = ["bfloat16", "float16", "float32"]
    parser.add_argument("--types", nargs="+", choices=types, default=types)
    chosen = parser.parse_args()
    if not (torch.cuda.is_available() and CUDA_LIBRARY.exists()):
        sys.exit("sanitized_calls.py: needs a CUDA GPU and libdba_cuda beside libdba")
    torch.ops.dba.set_backend("fused")  # a fall-back to the reference is an error
    count = 0
    for case in cases(chosen):
        print(case, flush=True)  # before what the tool says of it
        call(case)
        count += 1
    print(f"{count} calls, all results finite")


if __name__ == "__main__":
    main()
