"""torch.compile and torch.export of modules: one graph for all lengths, and the numbers of the plain calls."""

import pathlib
import sys

import pytest
import torch
import torch._dynamo.testing

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import dba  # noqa: E402

SIZES = {"d_p": 3, "d_in": 6, "dtype": torch.double}


def module_of(kind, **options):
    torch.manual_seed(0)
    return kind(8, 2, **SIZES, **options)


def self_attention(module, x, mask):
    return module(x, key_padding_mask=mask)[0]


def packed(module, x, mask):
    # As many rows of nobody at the end as the mask says, and two sequences before them.
    bounds = torch.stack([mask.sum() * 0, (~mask[0]).sum(), (~mask).sum()])
    return module(x.flatten(0, 1), cu_seqlens=bounds)[0]


def cross_attention(module, x, mask):
    return module(x, x.flip(1) + 1, key_padding_mask=mask.flip(1), query_padding_mask=mask)[0]


CASES = {
    "paper": (dba.DBAttention, {}, self_attention),
    "packed": (dba.DBAttention, {"normalise": "linear"}, packed),
    "two streams": (dba.DBAttention, {}, cross_attention),
    "cross, released": (dba.DBACrossAttention, {"form": "released"}, cross_attention),
}


def padded_batch(length):
    x = torch.randn(2, length, 8, generator=torch.Generator().manual_seed(length), dtype=torch.double)
    mask = torch.arange(length) >= torch.tensor([[length], [length // 2]])
    return x, mask


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()


@pytest.mark.parametrize("case", CASES)
def test_one_graph_serves_all_lengths(case):
    kind, options, call = CASES[case]
    module = module_of(kind, **options)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x, mask: call(module, x, mask), backend=counter, fullgraph=True)
    compiled_so_far = set()
    for length in (9, 12):
        x, mask = padded_batch(length)
        results = []
        for run in (compiled, lambda x, mask: call(module, x, mask)):
            leaf = x.clone().requires_grad_()
            # Compilation fails where a length that was marked becomes a number.
            torch._dynamo.mark_dynamic(leaf, 1)
            torch._dynamo.mark_dynamic(mask, 1)
            y = run(leaf, mask)
            results.append((y, *torch.autograd.grad(y.square().sum(), [leaf, *module.parameters()])))
        for got, wanted in zip(*results, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)
        compiled_so_far.add(counter.frame_count)
    assert len(compiled_so_far) == 1


def test_lengths_become_dynamic_by_themselves():
    """Without dynamic=True the second length makes the compiler treat lengths as symbols; the third costs nothing."""
    module = module_of(dba.DBAttention).eval()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, backend=counter, fullgraph=True)
    compiled_so_far = []
    for length in (9, 12, 31):
        x, _ = padded_batch(length)
        torch.testing.assert_close(compiled(x)[0], module(x)[0], rtol=1e-10, atol=1e-12)
        compiled_so_far.append(counter.frame_count)
    assert len(set(compiled_so_far[1:])) == 1


def test_compiled_dropout_draws_anew_and_repeats_with_the_seed():
    module = module_of(dba.DBAttention, dropout=0.3, z_dropout=0.1)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    x, _ = padded_batch(9)
    torch.manual_seed(3)
    first, second = compiled(x)[0], compiled(x)[0]
    torch.manual_seed(3)
    assert torch.equal(compiled(x)[0], first) and not torch.equal(first, second)


def test_compiled_code_checks_its_masks():
    module = module_of(dba.DBAttention)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    x, mask = padded_batch(9)
    compiled(x, key_padding_mask=mask)
    with pytest.raises(RuntimeError, match="must be contiguous"):
        compiled(x, key_padding_mask=torch.arange(9).remainder(2).eq(0).expand(2, 9))


def test_compiled_code_takes_the_backend_around_it():
    module = module_of(dba.DBAttention, backend="reference")
    x, _ = padded_batch(9)
    with pytest.raises(Exception, match="backend must be None in compiled code"):
        torch.compile(module, backend="aot_eager", fullgraph=True)(x)


def test_compiled_encoder_serves_all_lengths():
    torch.manual_seed(0)
    config = dba.models.ModelConfig(d=8, heads=2, layers=1, d_ffn=16, d_p=3, d_in=6, dropout=0.0, attention_dropout=0.0,
                                    norm_first=True)
    model = dba.models.Classifier(config, 3, features=2, max_length=64).double()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    compiled_so_far = set()
    for length in (9, 12):
        x = torch.randn(4, length, 2, dtype=torch.double)
        torch._dynamo.mark_dynamic(x, 1)
        results = []
        for run in (compiled, model):
            logits = run(x)
            results.append((logits, *torch.autograd.grad(logits.square().sum(), list(model.parameters()))))
        for got, wanted in zip(*results, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-11)
        compiled_so_far.add(counter.frame_count)
    assert len(compiled_so_far) == 1


@pytest.mark.parametrize("form", ["paper", "released"])
def test_exported_program_gives_the_same_numbers_at_other_lengths(form):
    module = module_of(dba.DBAttention, form=form).eval()
    x, mask = padded_batch(9)
    length = torch.export.Dim("length", min=2, max=4096)
    exported = torch.export.export(module, (x,), {"key_padding_mask": mask},
                                   dynamic_shapes={"query": {1: length}, "key_padding_mask": {1: length}})
    operators = {str(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    assert "dba.attention_forward.default" in operators
    for n in (9, 70):
        x, mask = padded_batch(n)
        got, _ = exported.module()(x, key_padding_mask=mask)
        torch.testing.assert_close(got, module(x, key_padding_mask=mask)[0], rtol=1e-10, atol=1e-12)


def test_exported_classifier_gives_the_same_numbers():
    torch.manual_seed(0)
    config = dba.models.ModelConfig(d=8, heads=2, layers=2, d_ffn=16, d_p=3, d_in=6)
    model = dba.models.Classifier(config, 3, vocabulary=11, max_length=64).double().eval()
    tokens = torch.randint(11, (2, 12))
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=64)
    exported = torch.export.export(model, (tokens,), dynamic_shapes={"input": {0: batch, 1: length}})
    for shape in ((2, 12), (5, 40)):
        tokens = torch.randint(11, shape)
        torch.testing.assert_close(exported.module()(tokens), model(tokens), rtol=1e-9, atol=1e-11)
