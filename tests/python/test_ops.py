"""The operators as PyTorch sees them: schemas, shape functions, autograd under compilation, GPU behaviour."""

import loaded_library  # noqa: F401
import pytest
import torch
import torch.utils.checkpoint

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")),
]
D, HEADS, SLOTS = 8, 2, 3
RNG = (123, 456)


def tensor(generator, *shape, device="cpu", grad=True):
    value = torch.randn(*shape, generator=generator, dtype=torch.double).to(device)
    return value.requires_grad_(grad)


def bounds(device):
    """Four sequences of 10, 0, 7 and 17 tokens in 37 rows; three rows belong to nobody."""
    return torch.tensor([0, 10, 10, 20], device=device), torch.tensor([10, 10, 17, 37], device=device)


def compress_arguments(device, dropout):
    g = torch.Generator().manual_seed(1)
    make = lambda *shape: tensor(g, *shape, device=device)
    rng = torch.tensor(RNG, device=device)
    return (make(37, D), *bounds(device), make(4, 3, D), make(4, 3), make(4, D), make(4), 2, dropout, rng)


def restore_arguments(device, dropout):
    g = torch.Generator().manual_seed(2)
    make = lambda *shape: tensor(g, *shape, device=device)
    rng = torch.tensor(RNG, device=device)
    slots = HEADS * SLOTS
    return (make(37, D), *bounds(device), make(slots, D), make(slots), make(4, slots, 7), make(7), HEADS, False,
            dropout, rng)


def core_weights(make):
    return [make(D, D), make(D), make(D, D), make(D), make(D, D), make(D), make(HEADS, D // HEADS, 2), None, None,
            None, None, make(D, D), None]


def core_arguments(device, dropout):
    g = torch.Generator().manual_seed(3)
    make = lambda *shape: tensor(g, *shape, device=device)
    rows = 3 * HEADS * SLOTS
    return make(4, rows, D), make(4, rows), core_weights(make), HEADS, dropout, torch.tensor(RNG, device=device)


def attention_arguments(device, dropout):
    g = torch.Generator().manual_seed(4)
    make = lambda *shape: tensor(g, *shape, device=device)
    slots = HEADS * SLOTS
    return (make(37, D), *bounds(device), make(4, 2 * slots, D), None, make(slots, D), make(slots), 0,
            core_weights(make), make(slots, D), make(slots), make(D), HEADS, False, dropout,
            torch.tensor(RNG, device=device))


CASES = {
    "compress": compress_arguments,
    "restore": restore_arguments,
    "core": core_arguments,
    "attention": attention_arguments,
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("name", CASES)
def test_operator_keeps_pytorchs_rules(name, dropout, device):
    """Schema, autograd registration, shape function, and equal results under AOTAutograd with dynamic shapes."""
    operator = getattr(torch.ops.dba, name).default
    torch.library.opcheck(operator, CASES[name](device, dropout))


@pytest.mark.parametrize("name", CASES)
def test_double_backward_is_refused_in_words(name):
    leaf = CASES[name]("cpu", 0.0)[0]
    outputs = getattr(torch.ops.dba, name)(leaf, *CASES[name]("cpu", 0.0)[1:])
    first = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        torch.autograd.grad(first.sum(), leaf, create_graph=True)


def run_attention(function, *, dropout=0.4):
    """Output and gradient of x."""
    arguments = attention_arguments("cpu", dropout)
    y = function(*arguments)
    return y.detach(), torch.autograd.grad(y.sum(), arguments[0])[0]


def test_activation_checkpointing_repeats_the_mask():
    plain = run_attention(lambda *a: torch.ops.dba.attention(*a)[0])
    checkpointed = run_attention(
        lambda x, *a: torch.utils.checkpoint.checkpoint(lambda t: torch.ops.dba.attention(t, *a)[0], x,
                                                        use_reentrant=False))
    for got, wanted in zip(checkpointed, plain, strict=True):
        assert torch.equal(got, wanted)


def test_compiled_function_has_one_graph_and_the_same_gradients():
    def layer(*a):
        return torch.ops.dba.attention(*a)[0].sin()

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for got, wanted in zip(run_attention(compiled), run_attention(layer), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
class TestOnGpu:
    def test_mask_is_the_cpus(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            arguments = lambda device: (
                torch.tensor(RNG, device=device), 0.3, 2, torch.tensor([3, 5, 0], device=device),
                torch.tensor([6, 17, 2**33], device=device), 11, 5, dtype)
            on_cpu = torch.ops.dba.dropout_mask(*arguments("cpu"))
            on_gpu = torch.ops.dba.dropout_mask(*arguments("cuda"))
            assert torch.equal(on_cpu, on_gpu.cpu())

    @pytest.mark.parametrize("dropout", [0.0, 0.4])
    @pytest.mark.parametrize("name", CASES)
    def test_values_and_gradients_are_the_cpus(self, name, dropout):
        results = {}
        for device in ("cpu", "cuda"):
            arguments = CASES[name](device, dropout)
            outputs = getattr(torch.ops.dba, name)(*arguments)
            outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
            loss = sum((o.nan_to_num(neginf=0.0) * torch.linspace(-1, 1, o.numel(), dtype=o.dtype, device=device)
                        .view_as(o)).sum() for o in outputs)
            flat = [a for a in arguments if isinstance(a, torch.Tensor)]
            flat += [w for a in arguments if isinstance(a, list) for w in a if w is not None]
            leaves = [a for a in flat if a.requires_grad]
            results[device] = [o.detach().cpu() for o in outputs] + [g.cpu() for g in torch.autograd.grad(loss, leaves)]
        for on_cpu, on_gpu in zip(results["cpu"], results["cuda"], strict=True):
            torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-11, atol=1e-12)

    def test_nothing_waits_for_the_device_and_graphs_capture(self):
        arguments = [a.detach() if isinstance(a, torch.Tensor) else a for a in attention_arguments("cuda", 0.4)]
        arguments[8] = [w if w is None else w.detach() for w in arguments[8]]

        def forward_and_backward():
            x = arguments[0].detach().requires_grad_()
            y = torch.ops.dba.attention(x, *arguments[1:])[0]
            return y.detach(), torch.autograd.grad(y.sum(), x)[0]

        expected = forward_and_backward()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            forward_and_backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = forward_and_backward()
        for tensor in captured:
            tensor.zero_()
        graph.replay()
        for got, wanted in zip(captured, expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
