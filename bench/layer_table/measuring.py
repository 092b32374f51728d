"""Time and memory of the columns: all that are right at one length take turns."""

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from layer_table.columns import Column, columns_of
from layer_table.layers import SoftmaxLayer
from layer_table.truth import Truth, judge


class Timer:
    """Seconds per call. On a GPU of a replayed graph, or of plain calls where the call cannot be captured."""

    def __init__(self, call: Callable[[], object], device: str, cold: bool) -> None:
        self.call, self.device, self.cold = call, device, cold
        self.clock = "clock"
        if device == "cuda":
            self.clock = "graph"
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    call()
            torch.cuda.synchronize()
            try:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    call()
                self.graph, self.call = graph, graph.replay
            except RuntimeError as reason:
                torch.cuda.synchronize()
                self.clock = f"events ({str(reason).splitlines()[0]})"
        else:
            call()
        once = max(self._once(1), 1e-7)
        self.count = 1 if cold else max(1, min(1000, int(0.01 / once)))

    def _once(self, count: int) -> float:
        if self.device == "cuda":
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(count):
                self.call()
            stop.record()
            stop.synchronize()
            return start.elapsed_time(stop) / 1e3 / count
        start = time.perf_counter()
        for _ in range(count):
            self.call()
        return (time.perf_counter() - start) / count

    def sample(self, flush: Tensor | None) -> float:
        if self.cold:
            flush.zero_()
        else:
            self.call()
        return self._once(self.count)


def peak_bytes(call: Callable[[], object], device: str, dy: Tensor | None) -> int | None:
    """The most memory that a call holds beyond what stood before; dY counts, because training makes it too."""
    if device != "cuda":
        return None
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before + (dy.nbytes if dy is not None else 0)


def quartiles(samples: list[float]) -> tuple[float, float, float]:
    if len(samples) < 2:
        return samples[0], samples[0], samples[0]
    return tuple(statistics.quantiles(samples, n=4, method="inclusive"))


def measure(arguments: argparse.Namespace, form: str, length: int, backward: bool) -> list[dict]:
    """One row of the table: results of all columns at one length."""
    device, dtype = arguments.device, getattr(torch, arguments.dtype)
    batch = max(1, arguments.tokens // length)
    # Wide tokens and slots make peaked weights: over flat ones every sum is near zero and no error would show.
    x = 3 * torch.randn(batch, length, arguments.d, generator=torch.Generator(device).manual_seed(2), device=device)
    x = x.to(dtype)
    x.requires_grad_(backward)
    torch.compiler.reset()
    compiler = None
    if not arguments.no_compile:
        compiler = lambda function: torch.compile(function, dynamic=False, fullgraph=True)
    dy = torch.randn(x.shape, device=device, dtype=dtype) if backward else None
    rows, timers, truths, plain = [], [], {}, {}
    for column in columns_of(form, arguments, batch, length, arguments.columns, device, dtype, compiler):
        row = {"form": form, "length": length, "batch": batch, "method": column.name, "cache": arguments.cache,
               "pass": "forward+backward" if backward else "forward", "status": "ok"}
        rows.append(row)
        try:
            kind = type(column.layer)
            if kind not in truths:
                truths[kind] = Truth(column.layer, x, backward)
                scope = (lambda: sdpa_kernel(SDPBackend.MATH)) if kind is SoftmaxLayer and length <= 8192 else \
                    contextlib.nullcontext
                plain[kind] = truths[kind].errors(Column("plain", column.layer, column.layer, scope), x)
            errors = truths[kind].errors(column, x)
            row["error"], row["gradient_error"] = errors
            wrong = judge(errors, plain[kind], dtype)
            if wrong:
                row |= {"status": "wrong", "reason": wrong}
                continue
            call = (lambda c=column: c.gradients(x, dy)) if backward else (lambda c=column: c.forward(x))
            row["peak_bytes"] = peak_bytes(call, device, dy)
            timers.append((row, Timer(call, device, arguments.cache == "cold"), []))
            row["clock"] = timers[-1][1].clock
        except Exception as reason:  # a back end that is missing must not end the table
            row |= {"status": "failed", "reason": f"{type(reason).__name__}: {str(reason).strip().splitlines()[0]}"}
    truths.clear()
    flush = torch.empty(256 << 20, dtype=torch.uint8, device=device) if arguments.cache == "cold" else None
    for _ in range(arguments.repeats):
        for row, timer, samples in timers:
            if sum(samples) * timer.count < arguments.seconds or len(samples) < 3:
                samples.append(timer.sample(flush))
    for row, timer, samples in timers:
        row["q1_ms"], row["median_ms"], row["q3_ms"] = (1e3 * value for value in quartiles(samples))
        row["samples"], row["calls_per_sample"] = len(samples), timer.count
    return rows
