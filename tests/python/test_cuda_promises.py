"""What the CUDA kernels promise beside their numbers: bits, strides, sizes, graphs, PyTorch's switches and errors."""

import os
import subprocess
import sys

import pytest
import torch
from loaded_library import LIBRARY
from plain_passes import (LENGTHS, RNG, TYPES, attention_operands, check, in_reference, kernels, leaves,
                          needs_gpu, run_attention)

__all__ = ["kernels"]
pytestmark = [needs_gpu, pytest.mark.usefixtures("kernels")]


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


def run_last(x, begin, end, first, shared, m, dc, dy):
    """What the passes and their gradients make of the last sequence, which begins at row `first`."""
    x, shared, m = (t.detach().requires_grad_() for t in (x, shared, m))
    c = torch.ops.dba.compress(x, begin, end, None, None, shared, None, 0, 0.0, None)[0]
    of_c = torch.zeros_like(c)
    of_c[-1] = dc
    dx, dshared = torch.autograd.grad(c, [x, shared], of_c)
    results = [c[-1], dx[first:].clone(), dshared]
    del dx
    y = torch.ops.dba.restore(x, begin, end, shared, None, m, None, 4, False, 0.0, None)
    of_y = torch.zeros_like(y)
    of_y[first:] = dy
    dx, dshared, dm = torch.autograd.grad(y, [x, shared, m], of_y)
    return [*results, y[first:].clone(), dx[first:].clone(), dshared, dm[-1]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_more_than_two_to_the_31_elements(dtype):
    """The last sequence of X, whose elements lie beyond 2³¹, errs no more than it does alone."""
    rows, d, length = (1 << 23) + 1000, 256, 777
    if torch.cuda.mem_get_info()[0] < 6 * rows * d * 4:
        pytest.skip("needs about 50 GB of free GPU memory")
    torch.manual_seed(7)
    first = rows - length
    x = torch.randn(rows, d, device="cuda", dtype=dtype)
    begin, end = torch.tensor([0, first], device="cuda"), torch.tensor([first, rows], device="cuda")
    shared = torch.randn(64, d, device="cuda").to(dtype) / 16
    m = torch.randn(2, 64, d, device="cuda")
    dc, dy = torch.randn(64, d, device="cuda"), torch.randn(length, d, device="cuda").to(dtype)
    got = run_last(x, begin, end, first, shared, m, dc, dy)
    alone = (x[first:].clone(), begin[:1], begin[:1] + length, 0, shared, m[1:], dc, dy)
    exact = in_reference(run_last, *(t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t
                                     for t in alone))
    names = ["c", "dx of compress", "dshared", "y", "dx of restore", "drows", "dm"]
    check(names, got, run_last(*alone), exact, dtype)


@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize("switch,allowing,forbidding",
                         [("fp32_precision", "tf32", "ieee"), ("allow_tf32", True, False)])
def test_float32_is_rounded_to_tf32_where_the_switch_allows_it(switch, allowing, forbidding, width):
    generator = torch.Generator().manual_seed(9)
    batch, tensors = attention_operands(4, 16, width, 24, False, False, LENGTHS, generator)
    rounded = [None if t is None else t.float().double() for t in tensors]
    exact = in_reference(run_attention, leaves(rounded, torch.double), batch, 4, 0.0)[0]
    error = {}
    for value in (allowing, forbidding):
        setattr(torch.backends.cuda.matmul, switch, value)
        try:
            y = run_attention(leaves(rounded, torch.float32), batch, 4, 0.0)[0]
        finally:
            setattr(torch.backends.cuda.matmul, switch, forbidding)
        error[value] = float((y.double() - exact).norm() / exact.norm())
    assert error[forbidding] < 1e-5 and 10 * error[forbidding] < error[allowing] < 1e-2, error


def test_without_memory_pytorchs_error_comes_and_nothing_else():
    """With any amount of room the call throws PyTorch's error or gives the bits that it gives with plenty."""
    generator = torch.Generator().manual_seed(10)
    batch, tensors = attention_operands(4, 16, 256, 24, False, False, [40000, 0, 9000], generator)
    operands = leaves([None if t is None else t.bfloat16() for t in tensors], torch.bfloat16)
    expected = run_attention(operands, batch, 4, 0.1)
    refused = 0
    try:
        for room in range(0, 256, 16):
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            allowed = torch.cuda.memory_reserved() + (room << 20)
            torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.mem_get_info()[1])
            try:
                got = run_attention(operands, batch, 4, 0.1)
            except torch.OutOfMemoryError:
                refused += 1
                continue
            assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
            del got
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert refused > 0
    assert all(torch.equal(a, b) for a, b in zip(expected, run_attention(operands, batch, 4, 0.1), strict=True))


FALL_BACKS = """
import sys, torch
for name in ("libdba.so", "libdba_cuda.so"):
    torch.ops.load_library(f"{sys.argv[1]}/{name}")
begin, end = torch.tensor([0], device="cuda"), torch.tensor([9], device="cuda")
for width, slots in ((2048, 4), (64, 5)):
    x = torch.randn(9, width, device="cuda").bfloat16()
    m = torch.randn(1, slots, 8, device="cuda")
    torch.ops.dba.restore(x, begin, end, x[:slots], None, m, None, 1, False, 0.0, None)
"""


def test_the_log_says_who_serves_instead():
    said = subprocess.run([sys.executable, "-c", FALL_BACKS, str(LIBRARY.parent)], check=True, capture_output=True,
                          text=True, env={**os.environ, "DBA_LOG": "debug"}).stderr
    assert "dba: restore: the reference, because the CUDA kernels take widths from 8 to 1024, and x has 2048" in said
    if torch.cuda.get_device_capability()[0] == 9:
        assert "dba: restore: the general CUDA kernels, because" in said


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
