"""The operators through the package: PyTorch's rules for every one of them, gradients, and the documented examples."""

import doctest
import importlib
import pathlib
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import dba  # noqa: E402

D, HEADS, SLOTS, ROWS = 8, 2, 3, 13
RNG = (123, 456)


class Inputs:
    """Operands for one call, in double, all of them differentiable."""

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.begin, self.end = torch.tensor([0, 5, 5]), torch.tensor([5, 5, 12])
        self.rng = torch.tensor(RNG)

    def __call__(self, *shape):
        return torch.randn(*shape, generator=self.generator, dtype=torch.double).requires_grad_()


def core_weights(make, released=False, other=None):
    inner = HEADS * 2
    if released:
        return [make(inner, D), make(inner), make(inner, D), make(inner), make(D, D), make(D), None, make(D, D),
                make(D), make(D), make(D), make(D, D), other]
    return [make(D, D), make(D), make(D, D), make(D), make(D, D), make(D), make(HEADS, D // HEADS, 2), None, None, None,
            None, make(D, D), other]


def compress(make, p):
    return make(ROWS, D), make.begin, make.end, make(3, 2, D), make(3, 2), make(4, D), make(4), 2, p, make.rng


def restore(make, p):
    slots = HEADS * SLOTS
    return (make(ROWS, D), make.begin, make.end, make(3, slots, D), make(3, slots), make(3, slots, 7), make(7), HEADS,
            False, p, make.rng)


def core(make, p, **kind):
    rows = HEADS * SLOTS * (1 if kind else 3)
    return make(3, rows, D), make(3, rows), core_weights(make, **kind), HEADS, p, make.rng


def attention(make, p):
    slots = HEADS * SLOTS
    return (make(ROWS, D), make.begin, make.end, make(3, 2 * slots, D), None, make(slots, D), make(slots), slots,
            core_weights(make), make(slots, D), make(slots), make(D), HEADS, True, p, make.rng)


def residual_norm(make, p, keep_sum):
    return make(ROWS, D), make(ROWS, D), make(D), make(D), make(D), 1e-5, p, make.rng, keep_sum, None


CASES = {
    "compress": compress,
    "restore": restore,
    "core": core,
    "core of form released": lambda make, p: core(make, p, released=True),
    "core of cross-attention": lambda make, p: core(make, p, other=make(3, SLOTS, D)),
    "attention": attention,
    "fold": lambda make, p: (make(SLOTS, D), make(D, D), make(D), HEADS, 0.5),
    "fold_stack": lambda make, p: (make(SLOTS, D), [make(D, D), make(D, D)], [make(D), None], make(4, D), make(4),
                                   HEADS, 0.5),
    "residual_norm": lambda make, p: residual_norm(make, p, False),
    "residual_norm with its sum": lambda make, p: residual_norm(make, p, True),
    "residual_norm without a branch": lambda make, p: (make(ROWS, D), None, None, make(D), make(D), 1e-5, 0.0, None,
                                                       False, None),
    "residual_sum": lambda make, p: (make(ROWS, D), make(ROWS, D), make(D), p, make.rng),
    "activate": lambda make, p: (make(ROWS, D), make(D), "gelu", p, make.rng),
    "activate with relu": lambda make, p: (make(ROWS, D), None, "relu", p, make.rng),
    "dropout_mask": lambda make, p: (make.rng, p, 2, torch.tensor([0, 3]), torch.tensor([0, 7]), 5, 4, torch.double),
}


def operator_of(case):
    return getattr(torch.ops.dba, case.split(" ")[0]).default


# test_ops.py holds the other four to the same rules.
@pytest.mark.parametrize("case", [case for case in CASES if case not in ("compress", "restore", "core", "attention")])
def test_operator_keeps_pytorchs_rules(case):
    """Schema, autograd registration, shape function, and equal results under AOTAutograd with dynamic shapes."""
    torch.library.opcheck(operator_of(case), CASES[case](Inputs(1), 0.4))


def detached(arguments):
    return tuple([t if t is None else t.detach() for t in a] if isinstance(a, list)
                 else a.detach() if isinstance(a, torch.Tensor) else a for a in arguments)


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("case", ["compress", "restore", "core", "core of form released", "attention"])
def test_the_gradients_operators_have_right_schemas_and_shapes(case, p):
    """They have no gradient of their own; what compilers see of them are these."""
    arguments = detached(CASES[case](Inputs(1), p))
    name = case.split(" ")[0]
    checks = ("test_schema", "test_faketensor")
    if name == "attention":
        forward = torch.ops.dba.attention_forward.default
        torch.library.opcheck(forward, arguments, test_utils=checks)
        y, compressed, c, r, lse, m = forward(*arguments)
        saved = (c, r, lse, m, torch.ones_like(y), torch.ones_like(compressed))
    else:
        outputs = operator_of(case)(*arguments)
        ones = [torch.ones_like(o) for o in ((outputs,) if isinstance(outputs, torch.Tensor) else outputs)]
        saved = (*outputs, *ones) if name == "compress" else ones
    torch.library.opcheck(getattr(torch.ops.dba, name + "_backward").default, (*arguments, *saved), test_utils=checks)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_what_attention_keeps_on_a_gpu_is_what_compilers_see(dtype, linear, p):
    """M for the backward is in the tokens' type there."""
    on_gpu = lambda t: t.cuda().to(dtype) if t.is_floating_point() else t.cuda()
    arguments = [[None if t is None else on_gpu(t) for t in a] if isinstance(a, list)
                 else on_gpu(a) if isinstance(a, torch.Tensor) else a for a in detached(attention(Inputs(1), p))]
    arguments[13] = linear
    checks = ("test_schema", "test_faketensor")
    forward = torch.ops.dba.attention_forward.default
    torch.library.opcheck(forward, tuple(arguments), test_utils=checks)
    y, compressed, *kept = forward(*arguments)
    assert kept[-1].dtype == dtype
    torch.library.opcheck(torch.ops.dba.attention_backward.default,
                          (*arguments, *kept, torch.ones_like(y), torch.ones_like(compressed)), test_utils=checks)


def test_every_operator_is_among_the_cases():
    differentiable = {name.removeprefix("dba::").split(".")[0] for name in torch._C._dispatch_get_all_op_names()
                      if name.startswith("dba::")}
    inner = {name for name in differentiable if name.startswith("attention_") or name.endswith("_backward")}
    without_tensors = {"backend", "set_backend", "cuda_kernels", "set_cuda_kernels", "zoo_members",
                       "forget_kept_tensors"}
    # test_zoo_operators.py
    inside_functions = {"code_agreement", "elu_plus_one_forward", "real_spectrum", "sums_beyond"}
    assert differentiable - inner - without_tensors - inside_functions == {case.split(" ")[0] for case in CASES}


def flat(arguments):
    for argument in arguments:
        yield from argument if isinstance(argument, list) else [argument]


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("case", [case for case in CASES if case != "dropout_mask"])
def test_gradients_are_right(case, p):
    arguments = CASES[case](Inputs(2), p)
    leaves = [a for a in flat(arguments) if isinstance(a, torch.Tensor) and a.requires_grad]

    def run(*_):
        outputs = operator_of(case)(*arguments)
        outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
        # −inf, the lse of an empty sequence, has no differences.
        return tuple(o.nan_to_num(neginf=0.0) for o in outputs if o.requires_grad and o.numel())

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


NO_SECOND = {case: make for case, make in CASES.items() if not case.startswith(("fold", "dropout_mask"))}


@pytest.mark.parametrize("case", NO_SECOND)
def test_second_derivatives_are_refused_in_words(case):
    arguments = CASES[case](Inputs(3), 0.0)
    outputs = operator_of(case)(*arguments)
    outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
    loss = sum(o.nan_to_num(neginf=0.0).sum() for o in outputs if o.requires_grad)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        torch.autograd.grad(loss, arguments[0], create_graph=True)


@pytest.mark.parametrize("case", ["compress", "restore", "core", "attention"])
def test_torch_func_refuses_the_bare_operator_in_words_and_takes_the_packages(case):
    arguments = CASES[case](Inputs(4), 0.0)
    rest = [a.detach() if isinstance(a, torch.Tensor) else [t if t is None else t.detach() for t in a]
            if isinstance(a, list) else a for a in arguments[1:]]
    first = arguments[0].detach()
    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.grad(lambda x: _first(operator_of(case)(x, *rest)).sum())(first)
    by_package = torch.func.grad(lambda x: _first(_through_package(case, x, rest)).square().sum())(first)
    leaf = first.clone().requires_grad_()
    wanted = torch.autograd.grad(_first(operator_of(case)(leaf, *rest)).square().sum(), leaf)[0]
    torch.testing.assert_close(by_package, wanted, rtol=1e-12, atol=1e-13)


def _first(outputs):
    return outputs if isinstance(outputs, torch.Tensor) else outputs[0]


def _through_package(case, x, rest):
    if case == "core":
        r, weights, heads = rest[:3]
        return dba.ops.core(x, r, named_weights(weights), heads)
    sequences = dba.Sequences(rest[0], rest[1], x.shape[0])
    if case == "restore":
        rows, bias, m, out_bias, heads, linear = rest[2:8]
        return dba.ops.restore(x, sequences, rows=rows, bias=bias, m=m, out_bias=out_bias, heads=heads, linear=linear)
    names = ("each", "each_bias", "shared", "shared_bias")
    score_rows = dict(zip(names, rest[2:6], strict=True))
    if case == "compress":
        return dba.ops.compress(x, sequences, **score_rows, linear=rest[6])
    linear_rows, weights, rows, bias, out_bias, heads, linear = rest[6:13]
    return dba.ops.attention(x, sequences, named_weights(weights), **score_rows, linear_rows=linear_rows,
                             restore_rows=rows, restore_bias=bias, out_bias=out_bias, heads=heads, linear=linear)


def named_weights(weights):
    names = ("query_weight", "query_bias", "key_weight", "key_bias", "value_weight", "value_bias", "width",
             "compress_weight", "compress_bias", "norm_weight", "norm_bias", "out_weight", "other")
    named = dba.ops.CoreWeights(**dict(zip(names, weights, strict=True)))
    assert all(a is b for a, b in zip(named.as_list(), weights, strict=True))
    return named


def test_a_padded_batch_is_a_plain_one_cut_short():
    make = Inputs(5)
    x, rows = make(2, 6, D), make(4, D)
    lengths = torch.tensor([6, 4])
    sequences = dba.Sequences.from_lengths(lengths, 6)
    c = dba.ops.compress(x, sequences, shared=rows).c
    torch.testing.assert_close(c[1:], dba.ops.compress(x[1:, :4], shared=rows).c, rtol=1e-12, atol=1e-14)
    y = dba.ops.restore(x, sequences, rows=rows, m=make(2, 4, 5))
    assert y.shape == (2, 6, 5) and torch.equal(y[1, 4:], torch.zeros(2, 5, dtype=torch.double))


def test_parts_of_a_sequence_merge_to_the_whole():
    make = Inputs(6)
    x, rows, bias = make(3, 20, D), make(5, D), make(5)
    whole = dba.ops.compress(x, shared=rows, shared_bias=bias, linear=2)
    parts = [dba.ops.compress(part, shared=rows, shared_bias=bias, linear=2) for part in x.split([4, 0, 9, 7], 1)]
    merged = parts[0]
    for part in parts[1:]:
        merged = dba.ops.merge(merged, part)
    for got, wanted in zip(merged, whole, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-13)
    empty = dba.ops.compress(x[:, :0], shared=rows)
    assert torch.equal(dba.ops.merge(empty, empty).c, torch.zeros(3, 5, D, dtype=torch.double))


@pytest.mark.parametrize("module", ["ops", "attention", "cross_attention", "replace", "models.classifier"])
def test_documented_examples_do_what_they_say(module):
    result = doctest.testmod(importlib.import_module(f"dba.{module}"), extraglobs={"torch": torch, "dba": dba})
    assert result.attempted > 0 and result.failed == 0
