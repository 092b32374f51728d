"""What PyTorch promises of every module holds of dba.DBAttention: copies, torch.func, autocast, checkpointing, and more."""

import copy
import io
import pickle

import pytest
import torch
import torch.utils.checkpoint
from small_attention import dba, make, tokens

x = tokens(2, 5)


def test_copies_pickles_and_state_dicts_compute_the_same():
    module = make(form="released")
    expected = module(x)[0]
    stream = io.BytesIO()
    torch.save(module.state_dict(), stream)
    stream.seek(0)
    loaded = make(form="released", seed=5)
    loaded.load_state_dict(torch.load(stream))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), loaded):
        assert torch.equal(other(x)[0], expected)
    swapped = {name: torch.zeros_like(value) for name, value in module.named_parameters()}
    assert torch.equal(torch.func.functional_call(module, swapped, (x,))[0], torch.zeros_like(x))


def test_a_device_that_is_given_counts_more_than_the_default_one():
    with torch.device("meta"):
        made = {device: make(device=device) for device in (None, "cpu", "meta")}
    assert {device: module(x.to(module.r.device))[0].device.type for device, module in made.items()} == {
        None: "meta", "cpu": "cpu", "meta": "meta"}
    made[None].to_empty(device="cpu").load_state_dict(made["cpu"].state_dict())
    assert torch.equal(made[None](x)[0], made["cpu"](x)[0])


def test_torch_func_is_right_and_second_derivatives_are_refused_in_words():
    for options in ({}, {"form": "released"}):
        module = make(**options)
        parameters = dict(module.named_parameters())

        def loss(parameters, x, module=module):
            return torch.func.functional_call(module, parameters, (x,))[0].square().sum()

        got = torch.func.grad(loss)(parameters, x)
        wanted = torch.autograd.grad(loss(parameters, x), list(parameters.values()))
        for name, gradient in zip(parameters, wanted, strict=True):
            torch.testing.assert_close(got[name], gradient, rtol=1e-11, atol=1e-13)
        leaf = x.clone().requires_grad_()
        with pytest.raises(RuntimeError, match="double backward is not supported"):
            torch.autograd.grad(module(leaf)[0].sum(), leaf, create_graph=True)
        twice = torch.func.grad(lambda x: torch.func.grad(loss, argnums=1)(parameters, x).square().sum())
        with pytest.raises(RuntimeError, match="double backward is not supported"):
            twice(x)


def test_autocast_gives_narrow_outputs_and_wide_gradients():
    module, batch = make(dtype=torch.float32), tokens(2, 40, dtype=torch.float32).requires_grad_()
    exact = module(batch)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = module(batch)[0]
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), exact, rtol=0.02, atol=0.02)
    y.float().square().sum().backward()
    assert batch.grad.dtype == torch.float32 and module.w_q.weight.grad.dtype == torch.float32


def test_checkpointing_draws_the_same_mask():
    module = make(dropout=0.4, z_dropout=0.2)
    results = []
    for checkpointed in (False, True):
        torch.manual_seed(3)
        leaf = tokens(2, 6).requires_grad_()
        run = lambda t: module(t)[0]  # noqa: E731
        y = torch.utils.checkpoint.checkpoint(run, leaf, use_reentrant=False) if checkpointed else run(leaf)
        results.append((y.detach(), torch.autograd.grad(y.square().sum(), leaf)[0]))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    torch.manual_seed(4)
    assert not torch.equal(module(tokens(2, 6))[0], results[0][0])


def test_dropout_rests_in_eval():
    module = make(dropout=0.4, z_dropout=0.2).eval()
    assert torch.equal(module(x)[0], module(x)[0])
    assert torch.equal(module(x)[0], make()(x)[0])


def test_backend_can_be_forced():
    before = dba.get_backend()
    with dba.backend("reference"):
        assert dba.get_backend() == "reference"
        with dba.backend("fused"):
            assert dba.get_backend() == "fused"
        assert dba.get_backend() == "reference"
    assert dba.get_backend() == before
    with pytest.raises(ValueError, match="backend must be one of"):
        dba.backend("quick")
    batch = tokens(3, 70, dtype=torch.float32)
    results = {}
    for name in (None, "reference", "fused"):
        leaf = batch.clone().requires_grad_()
        module = make(dtype=torch.float32, backend=name)
        with dba.backend("auto"):
            y = module(leaf)[0]
            results[name] = (y, *torch.autograd.grad(y.square().sum(), [leaf, *module.parameters()]))
            assert dba.get_backend() == "auto"
    for name in ("reference", "fused"):
        for got, wanted in zip(results[name], results[None], strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    # Which one computed shows in the last bits; on the CPU `auto` is the fused one.
    assert torch.equal(results["fused"][0], results[None][0])
    assert not torch.equal(results["reference"][0], results[None][0])
    assert not torch.equal(results["reference"][1], results[None][1])


def test_a_million_tokens_go_forward_and_backward():
    torch.manual_seed(0)
    module = dba.DBAttention(8, 1, d_p=2, d_in=4)
    leaf = torch.randn(1, 2**20, 8, requires_grad=True)
    y, _ = module(leaf)
    y.square().mean().backward()
    assert y.shape == leaf.shape and y.isfinite().all() and leaf.grad.isfinite().all() and leaf.grad.abs().max() > 0
