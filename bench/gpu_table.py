#!/usr/bin/env python3
"""Times one attention layer, projections included, next to what PyTorch offers, all in one process.

Columns: a softmax layer on each SDPA back end, DBA as its equations are written (eager and compiled), the two-pass
algebra in plain PyTorch (compiled), and this library. On a GPU the figure is device time: the call is captured in a
CUDA graph and the graph is replayed; the columns take turns, so that all meet the same state of the machine. Before
anything is timed, every column is compared with float64, and a column that is wrong gets no time.

Examples:
  bench/gpu_table.py                                   the whole table, about ten minutes with the compiler
  bench/gpu_table.py --no-compile --json table.json    without torch.compile
  bench/gpu_table.py --lengths 4096 --passes both --columns flash,cudnn,dba
  bench/gpu_table.py --device cpu --dtype float32 --tokens 2048 --lengths 256 --no-compile
"""

import argparse
import contextlib
import copy
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

ROOT = pathlib.Path(__file__).resolve().parents[1]
LENGTHS = [256, 1024, 4096, 16384, 65536, 1048576]
SDPA = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH}
COLUMNS = ["flash", "cudnn", "written", "written-compiled", "two-pass-compiled", "dba"]
# A relative error above these is wrong, whatever plain PyTorch manages in the same precision.
LARGEST_ERROR = {torch.bfloat16: 0.25, torch.float16: 0.1, torch.float32: 1e-3, torch.float64: 1e-9}


def by_head(x, heads):
    """(B, n, H·w) → (B, H, n, w)"""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def joined(x):
    return x.transpose(-3, -2).flatten(-2)


class SoftmaxLayer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.d, 3 * size.d)
        self.out = nn.Linear(size.d, size.d)

    def forward(self, x):
        q, k, v = (by_head(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        return self.out(joined(F.scaled_dot_product_attention(q, k, v)))

    def rows(self, x, chosen):
        """The output rows `chosen` alone, without the whole map."""
        q, k, v = (by_head(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        weights = torch.softmax(q[:, :, chosen] @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1)
        return self.out(joined(weights @ v))


class PaperLayer(nn.Module):
    """Form `paper`, per head; e = ceil(d_in / H)."""

    form = "paper"

    def __init__(self, size):
        super().__init__()
        self.heads, self.d_p = size.heads, size.d_p
        d, self.d_h, e = size.d, size.d // size.heads, -(-size.d_in // size.heads)
        self.z = nn.Parameter(torch.randn(size.d_p, d))
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d, d) for _ in range(4))
        self.r = nn.Parameter(torch.randn(size.heads, self.d_h, e) / math.sqrt(e))
        self.f_c, self.f_r = (nn.Linear(d, size.heads * size.d_p) for _ in range(2))

    def mix(self, queries, keys, values):
        """P' applied to the compressed values, (B, H, d_p, ·) each."""
        queries, keys = queries @ self.r, keys @ self.r
        return torch.softmax(queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1]), -1) @ values

    def forward(self, x):
        q, k, v = (by_head(w(x), self.heads) for w in (self.w_q, self.w_k, self.w_v))
        z = by_head(self.z, self.heads)
        scale = 1 / math.sqrt(self.d_h)
        w_r = torch.softmax(z @ q.transpose(-1, -2) * scale, -1)
        w_c = torch.softmax(z @ k.transpose(-1, -2) * scale, -1)
        w_c_prime = torch.softmax(by_head(self.f_c(x), self.heads), -2)
        w_r_prime = torch.softmax(by_head(self.f_r(x), self.heads), -1)
        mixed = self.mix(w_r @ q, w_c @ k, w_c_prime.transpose(-1, -2) @ v)
        return self.w_o(joined(w_r_prime @ mixed))

    def folded(self):
        """The score rows that stand for a projection followed by a product with z, (H·d_p, d) each."""
        z = by_head(self.z, self.heads) / math.sqrt(self.d_h)
        return [(z @ w.weight.unflatten(0, (self.heads, self.d_h))).flatten(0, 1) for w in (self.w_q, self.w_k)]

    def two_pass(self, x):
        rows = torch.cat([*self.folded(), self.f_c.weight])
        bias = torch.cat([self.f_c.bias.new_zeros(2 * self.heads * self.d_p), self.f_c.bias])
        weights = torch.softmax(F.linear(x, rows, bias).float(), -2).to(x.dtype)  # (B, n, L)
        groups = (weights.transpose(-1, -2) @ x).chunk(3, -2)

        def project(group, w):
            per_head = group.unflatten(-2, (self.heads, self.d_p))
            matrix = w.weight.unflatten(0, (self.heads, self.d_h))
            return per_head @ matrix.transpose(-1, -2) + w.bias.unflatten(0, (self.heads, 1, self.d_h))

        mixed = self.mix(*(project(g, w) for g, w in zip(groups, (self.w_q, self.w_k, self.w_v))))
        out = self.w_o.weight.unflatten(1, (self.heads, self.d_h)).permute(1, 2, 0)  # (H, d_h, d)
        return restored(x, self.f_r, mixed @ out, self.w_o.bias, self.heads)

    def library(self, x, begin, end):
        ops = torch.ops.dba
        scale = 1 / math.sqrt(self.d_h)
        rows = [ops.fold(self.z, w.weight, None, self.heads, scale)[0] for w in (self.w_q, self.w_k)]
        shared = torch.cat([*rows, self.f_c.weight])
        bias = torch.cat([self.f_c.bias.new_zeros(2 * self.heads * self.d_p), self.f_c.bias])
        weights = [self.w_q.weight, self.w_q.bias, self.w_k.weight, self.w_k.bias, self.w_v.weight, self.w_v.bias,
                   self.r, None, None, None, None, self.w_o.weight, None]
        y, _ = ops.attention(x.flatten(0, 1), begin, end, None, None, shared, bias, 0, weights, self.f_r.weight,
                             self.f_r.bias, self.w_o.bias, self.heads, False, 0.0, None)
        return y.view_as(x)


class ReleasedLayer(nn.Module):
    """The authors' time-series code: one compression, projections after it, a LayerNorm in the middle."""

    form = "released"

    def __init__(self, size):
        super().__init__()
        self.heads, self.d_p = size.heads, size.d_p
        d, self.e = size.d, -(-size.d_in // size.heads)
        inner = size.heads * self.e
        self.z = nn.Parameter(torch.randn(size.d_p, d))
        self.p_q, self.p_k, self.w_q, self.w_k = (nn.Linear(d, inner) for _ in range(4))
        self.p_v, self.w_v, self.w_o = (nn.Linear(d, d) for _ in range(3))
        self.norm = nn.LayerNorm(d)
        self.w_u = nn.Linear(d, size.heads * size.d_p)

    def middle(self, c):
        """(B, d_p, d) → the normed output of the attention between slots, by head."""
        q, k, v = (by_head(w(c), self.heads) for w in (self.w_q, self.w_k, self.w_v))
        s = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(self.e), -1)
        return by_head(self.norm(joined(s @ v)), self.heads)

    def forward(self, x):
        z = by_head(self.p_q(self.z), self.heads)
        keys, values = (by_head(w(x), self.heads) for w in (self.p_k, self.p_v))
        a = torch.softmax(z @ keys.transpose(-1, -2) / math.sqrt(self.e), -1)
        u = torch.softmax(by_head(self.w_u(x), self.heads), -1)
        return self.w_o(joined(u @ self.middle(joined(a @ values))))

    def two_pass(self, x):
        z = by_head(self.p_q(self.z), self.heads) / math.sqrt(self.e)
        rows = (z @ self.p_k.weight.unflatten(0, (self.heads, self.e))).flatten(0, 1)
        weights = torch.softmax((x @ rows.t()).float(), -2).to(x.dtype)
        summary = (weights.transpose(-1, -2) @ x).unflatten(-2, (self.heads, self.d_p))
        values = self.p_v.weight.unflatten(0, (self.heads, -1)).transpose(-1, -2)
        c = joined(summary @ values) + self.p_v.bias
        out = self.w_o.weight.unflatten(1, (self.heads, -1)).permute(1, 2, 0)
        return restored(x, self.w_u, self.middle(c) @ out, self.w_o.bias, self.heads)

    def library(self, x, begin, end):
        ops = torch.ops.dba
        shared, bias = ops.fold(self.p_q(self.z), self.p_k.weight, self.p_k.bias, self.heads, 1 / math.sqrt(self.e))
        weights = [self.w_q.weight, self.w_q.bias, self.w_k.weight, self.w_k.bias, self.w_v.weight, self.w_v.bias,
                   None, self.p_v.weight, self.p_v.bias, self.norm.weight, self.norm.bias, self.w_o.weight, None]
        y, _ = ops.attention(x.flatten(0, 1), begin, end, None, None, shared, bias, 0, weights, self.w_u.weight,
                             self.w_u.bias, self.w_o.bias, self.heads, False, 0.0, None)
        return y.view_as(x)


def restored(x, scores, m, bias, heads):
    """U M + b with M (B, H, d_p, d)."""
    u = torch.softmax(scores(x).unflatten(-1, (heads, -1)), -1).flatten(-2)
    return u @ m.flatten(1, 2) + bias


class Column:
    """One way to compute one layer: `call(x)` gives y."""

    def __init__(self, name, layer, call, scope=contextlib.nullcontext):
        self.name, self.layer, self.call, self.scope = name, layer, call, scope

    def forward(self, x):
        with self.scope(), torch.no_grad():
            return self.call(x)

    def gradients(self, x, dy):
        with self.scope():
            leaves = [x, *self.layer.parameters()]
            y = self.call(x)
            return [y.detach(), *torch.autograd.grad(y, leaves, dy, allow_unused=True)]


def columns_of(form, size, batch, length, names, device, dtype, compiler):
    torch.manual_seed(1)
    softmax = SoftmaxLayer(size).to(device, dtype)
    layer = (PaperLayer if form == "paper" else ReleasedLayer)(size).to(device, dtype)
    starts = torch.arange(0, batch * length, length, device=device)
    ends = starts + length
    for name in names:
        if name in SDPA:
            yield Column(name, softmax, softmax, lambda backend=SDPA[name]: sdpa_kernel(backend))
        elif name == "written":
            yield Column(name, layer, layer)
        elif name == "two-pass":
            yield Column(name, layer, layer.two_pass)
        elif name == "dba":
            yield Column(name, layer, lambda x: layer.library(x, starts, ends))
        elif compiler and name == "written-compiled":
            yield Column(name, layer, compiler(layer.forward))
        elif compiler and name == "two-pass-compiled":
            yield Column(name, layer, compiler(layer.two_pass))


def error_of(actual, expected):
    """The relative error, by norm."""
    error = (actual.double() - expected).norm()
    return float(error / expected.norm().clamp_min(1e-300)) if torch.isfinite(actual).all() else math.inf


def worst_gradient_error(actual, expected):
    """A small gradient counts relative to a hundredth of all; one that float64 shows to be zero, relative to all."""
    total = math.sqrt(sum(float(g.norm()) ** 2 for g in expected if g is not None))
    worst = 0.0
    for got, wanted in zip(actual, expected, strict=True):
        if wanted is None or got is None:
            continue
        if not torch.isfinite(got).all():
            return math.inf
        norm = float(wanted.norm())
        scale = total if norm < 1e-10 * total else max(norm, 1e-2 * total)
        worst = max(worst, float((got.double() - wanted).norm()) / scale)
    return worst


class Truth:
    """float64 values of a layer for the first and the last sequence; of a long softmax layer for some rows."""

    def __init__(self, layer, x, gradients):
        self.chosen = sorted({0, x.shape[0] - 1})
        length = x.shape[1]
        softmax = isinstance(layer, SoftmaxLayer)
        few = softmax and length > 8192
        self.rows = torch.linspace(0, length - 1, 64, device=x.device).long() if few else slice(None)
        exact = copy.deepcopy(layer).double()
        x64 = x[self.chosen].detach().double().requires_grad_(gradients)
        with torch.set_grad_enabled(gradients), sdpa_kernel(SDPBackend.MATH):
            y = exact.rows(x64, self.rows) if few else exact(x64)
        self.dy = None
        if gradients:
            self.dy = torch.zeros_like(x)
            noise = torch.randn(y.shape, device=x.device, dtype=x.dtype)
            self.dy[torch.tensor(self.chosen, device=x.device)[:, None],
                    torch.arange(length, device=x.device)[self.rows]] = noise
            self.gradients = torch.autograd.grad(y, [x64, *exact.parameters()], noise.double(), allow_unused=True)
        self.y = y.detach()

    def errors(self, column, x):
        """Of the output and, where wanted, the worst of the gradients."""
        if self.dy is None:
            y = column.forward(x)
            gradients = None
        else:
            y, dx, *others = column.gradients(x, self.dy)
            gradients = worst_gradient_error([dx[self.chosen], *others], self.gradients)
        return error_of(y[self.chosen][:, self.rows], self.y), gradients


def judge(errors, plain, dtype):
    """None, or a sentence on what is wrong: more than four times as far from the truth as plain PyTorch."""
    for what, error, yardstick in zip(("output", "gradient"), errors, plain):
        if error is None:
            continue
        allowed = min(max(4 * yardstick, torch.finfo(dtype).eps), LARGEST_ERROR[dtype])
        if not error <= allowed:
            return f"wrong {what}: relative error {error:.2e}, allowed {allowed:.2e}"
    return None


class Timer:
    """Seconds per call. On a GPU of a replayed graph, or of plain calls where the call cannot be captured."""

    def __init__(self, call, device, cold):
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

    def _once(self, count):
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

    def sample(self, flush):
        if self.cold:
            flush.zero_()
        else:
            self.call()
        return self._once(self.count)


def peak_bytes(call, device, dy):
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


def quartiles(samples):
    if len(samples) < 2:
        return samples[0], samples[0], samples[0]
    return tuple(statistics.quantiles(samples, n=4, method="inclusive"))


def measure(arguments, form, length, backward):
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
    add_ratios(rows)
    return rows


def add_ratios(rows):
    """How many times faster than the best softmax layer of the same row."""
    softmax = [row["median_ms"] for row in rows if row["method"] in SDPA and "median_ms" in row]
    for row in rows:
        if softmax and "median_ms" in row:
            row["times_faster_than_softmax"] = min(softmax) / row["median_ms"]


def print_rows(rows, names):
    first = rows[0]
    cells = {row["method"]: row for row in rows}

    def cell(name):
        row = cells.get(name)
        if row is None:
            return "–"
        if "median_ms" not in row:
            return row["status"]
        text = f"{row['median_ms']:.4g}"
        if "times_faster_than_softmax" in row and name not in SDPA:
            text += f" ({row['times_faster_than_softmax']:.2f}x)"
        return text + ("*" if row["clock"].startswith("events") else "")

    print(f"{first['form']:9} {first['length']:>9,} " + " ".join(f"{cell(name):>18}" for name in names), flush=True)
    if first["pass"] != "forward" and any(row.get("peak_bytes") for row in rows):
        memory = [f"{cells[n]['peak_bytes'] / 1e6:.0f} MB" if cells.get(n, {}).get("peak_bytes") else "–" for n in names]
        print(f"{'':9} {'peak':>9} " + " ".join(f"{text:>18}" for text in memory), flush=True)
    for row in rows:
        if "reason" in row:
            print(f"  {row['method']} at n = {row['length']:,}: {row['status']}: {row['reason']}", file=sys.stderr)


def machine(arguments):
    def commit():
        try:
            return subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True,
                                  text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return "unknown"

    gpu = torch.cuda.get_device_name() if arguments.device == "cuda" else platform.processor() or platform.machine()
    return {"device": gpu, "torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version(),
            "commit": commit(), "library": str(arguments.library)}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda kind: lambda text: [kind(word) for word in text.split(",")]
    parser.add_argument("--library", type=pathlib.Path,
                        default=os.environ.get("DBA_LIBRARY", ROOT / "build" / "release" / "lib" / "libdba.so"))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--tokens", type=int, default=131072, help="in all; a longer sequence stands alone")
    parser.add_argument("--lengths", type=listed(int), default=LENGTHS)
    parser.add_argument("--backward-lengths", type=listed(int), default=[4096], help="lengths of forward + backward")
    parser.add_argument("--forms", type=listed(str), default=["paper", "released"])
    parser.add_argument("--columns", type=listed(str), default=COLUMNS,
                        help=f"of {', '.join([*SDPA, *COLUMNS[2:], 'two-pass'])}")
    parser.add_argument("--passes", default="both", choices=["forward", "backward", "both"])
    parser.add_argument("--cache", default="warm", choices=["warm", "cold"])
    parser.add_argument("--no-compile", action="store_true", help="leave out the columns of torch.compile")
    for name, value in (("d", 256), ("heads", 4), ("d_p", 16), ("d_in", 24)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--repeats", type=int, default=30, help="samples of a figure, at most")
    parser.add_argument("--seconds", type=float, default=2.0, help="for a figure; three samples are taken in any case")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures there")
    arguments = parser.parse_args()
    unknown = set(arguments.columns) - {*SDPA, *COLUMNS, "two-pass"}
    if unknown or set(arguments.forms) - {"paper", "released"}:
        parser.error(f"unknown columns or forms: {', '.join(sorted(unknown) or arguments.forms)}")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA GPU that torch can use; choose --device cpu")
    if not arguments.library.exists() and "dba" in arguments.columns:
        parser.error(f"{arguments.library} does not exist; build the library or name it with --library")
    return arguments


def main():
    arguments = parse()
    if "dba" in arguments.columns:
        torch.ops.load_library(str(arguments.library))
        cuda_library = arguments.library.with_name("libdba_cuda.so")
        if cuda_library.exists():
            torch.ops.load_library(str(cuda_library))
            torch.ops.dba.set_cuda_kernels("auto")
        elif arguments.device == "cuda":
            print(f"{cuda_library} does not exist: the column dba shows the reference", file=sys.stderr)
    facts = machine(arguments)
    for key, value in facts.items():
        print(f"# {key:8} {value}")
    print(f"# layer    {arguments.dtype}, {arguments.tokens:,} tokens, d {arguments.d}, heads {arguments.heads}, "
          f"d_p {arguments.d_p}, d_in {arguments.d_in}, {arguments.cache} cache; ms (times faster than softmax); "
          "*: by events, without a graph")
    names = [name for name in arguments.columns if not (arguments.no_compile and name.endswith("compiled"))]
    results = []
    complete = False
    try:
        for backward, lengths in ((False, arguments.lengths), (True, arguments.backward_lengths)):
            if (arguments.passes == "forward" and backward) or (arguments.passes == "backward" and not backward):
                continue
            print(f"\n{'forward + backward' if backward else 'forward'}\n{'form':9} {'n':>9} "
                  + " ".join(f"{name:>18}" for name in names))
            for form in arguments.forms:
                for length in lengths:
                    rows = measure(arguments, form, length, backward)
                    results += rows
                    print_rows(rows, names)
                    if arguments.device == "cuda":
                        torch.cuda.empty_cache()
        complete = True
    except KeyboardInterrupt:
        print("\nstopped; what was measured so far stands above", file=sys.stderr)
    if arguments.json:
        settings = {key: str(value) if isinstance(value, pathlib.Path) else value
                    for key, value in vars(arguments).items()}
        arguments.json.write_text(json.dumps({"gpu_table": 1, "complete": complete, "machine": facts,
                                              "settings": settings, "results": results}, indent=1) + "\n")
    if not complete:
        return 130
    return 1 if any(row["status"] == "wrong" for row in results) else 0


if __name__ == "__main__":
    sys.exit(main())
