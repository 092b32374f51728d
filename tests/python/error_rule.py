"""How far a kernel's result may lie from the truth, which is the algebra in float64 on the kernel's own operands.

    error(kernel) ≤ 2 · error(reference in the same precision) + rounding · ‖truth‖        of every result by itself

For float32 the reference in the same precision is the library's. For the half types that one would be unfair: it
widens its operands and computes in float32, whereas a tensor core's factors are half numbers, so that weights, their
gradients, M and dC are rounded where they enter a product. PyTorch in half precision would be too lenient the other
way: it also rounds scores, before exp, and every sum. So the reference is the same algebra with the factors of all
products rounded to the half type and everything else in float32 (plain_passes.py): what the kernels must round, and
nothing more; between the slots, whose products are few, 11 bits in both types. One of these roundings would be large:
rows of M that hardly differ, those of long sequences, would differ by little but rounding afterwards. In backward what
the rows of a head have in common goes first, unless there is dropout.

`rounding` is that of the result's own type, for results of a few numbers which the reference may hit by chance. What
is left in float32 (c, r, lse) has no other floor: c's error is that of the rounded weights, and the reference has it
too. r and lse see no rounded factor, but scores whose sums the tensor cores cut off: SCORE_SUMS.

DBA_ERROR_TABLE=FILE appends a line for every result; `python3 tests/python/error_rule.py FILE` has the worst of them.
"""

import math
import os
import sys

import torch

# The most that rounding takes from a number; of float32 twice that, for two orders of the same sum.
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-23}

# Scores of the widest tokens, d = 1024, are sums in 64 steps of 16 terms, and each step cuts off up to 2⁻²³.
SCORE_SUMS = {"r": 2.0**-17, "lse": 2.0**-17}

COLUMNS = ("test", "result", "type", "error/truth", "reference/truth", "error/reference", "error/allowed")


def check(names, draws, dtype, vanishing=None):
    """`draws`: results, those of the reference in the same precision and the truth, of one or several draws of the
    operands, whose errors count together: in a product of small matrices those of one draw are a matter of luck.
    `dtype`: the operands'. `vanishing`: result → another one; the first is 0 in exact arithmetic or nearly so, what
    cancels in it is as large as the other, and a rounding of that is its floor."""
    errors = {name: Errors() for name in names}
    for draw in draws:
        for name, got, reference, exact in zip(names, *draw, strict=True):
            errors[name].add(name, got.detach(), reference.detach(), exact.detach())
    failures = []
    for name, of in errors.items():
        unit = ROUNDING[of.dtype] if dtype == torch.float32 else SCORE_SUMS.get(name, ROUNDING[of.dtype])
        scale = of.norm if name not in (vanishing or {}) else errors[vanishing[name]].norm
        assert name not in (vanishing or {}) or of.norm < scale / 8, f"{name} does not vanish"
        allowed = 2 * of.reference + unit * scale
        note(name, dtype, of, allowed, scale)
        if of.kernel > allowed:
            failures.append(f"{name} is off by {of.kernel:.2e}, the reference by {of.reference:.2e}, and {allowed:.2e} "
                            f"is allowed, of {scale:.2e}")
    assert not failures, "; ".join(failures)


class Errors:
    """Of one result: ‖result − truth‖, the same of the reference, and ‖truth‖, over all draws."""

    def __init__(self):
        self.kernel = self.reference = self.norm = 0.0

    def add(self, name, got, reference, exact):
        assert torch.equal(got.isinf(), exact.isinf()), name
        self.dtype = got.dtype
        got, reference, exact = (t.double().masked_fill(exact.isinf(), 0) for t in (got, reference, exact))
        assert bool(got.isfinite().all()), f"{name} is not finite"
        self.kernel = math.hypot(self.kernel, float((got - exact).norm()))
        self.reference = math.hypot(self.reference, float((reference - exact).norm()))
        self.norm = math.hypot(self.norm, float(exact.norm()))


def note(name, dtype, errors, allowed, scale):
    path = os.environ.get("DBA_ERROR_TABLE")
    if not path:
        return
    ratio = lambda a, b: 0.0 if a == 0 else a / b if b > 0 else float("inf")
    test = os.environ.get("PYTEST_CURRENT_TEST", "").split("::")[-1].removesuffix(" (call)").replace(" ", "_")
    numbers = (ratio(errors.kernel, scale), ratio(errors.reference, scale), ratio(errors.kernel, errors.reference),
               ratio(errors.kernel, allowed))
    with open(path, "a", encoding="utf-8") as file:
        columns = (test, name.replace(" ", "_"), str(dtype).removeprefix("torch."))
        print(*columns, *(f"{number:.3g}" for number in numbers), file=file)


def print_worst(path):
    """Of every result and type, the test that comes nearest to what is allowed."""
    worst = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            row = line.split()
            key = (row[0].split("[")[0], row[1], row[2])
            if key not in worst or float(row[-1]) > float(worst[key][-1]):
                worst[key] = row
    rows = [COLUMNS, *sorted(worst.values(), key=lambda row: -float(row[-1]))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    print_worst(sys.argv[1])
