#!/usr/bin/env python3
"""Times this library's attention layer on a GPU, whole and kernel by kernel.

Device time of replayed CUDA graphs; bfloat16, 131,072 tokens, d = 256, H = 4, d_p = 16, d_in = 24 unless told otherwise.
The comparison with other layers is bench/gpu_table.py.

  bench/gpu_kernels.py
  bench/gpu_kernels.py --lengths 4096 --kernels
  bench/gpu_kernels.py --width 512 --heads 8 --lengths 1024 --tokens 32768 --backward-length 1024 --kernels
  DBA_CUDA_KERNELS=general bench/gpu_kernels.py
"""

import argparse
import pathlib
import statistics

import torch
from cuda_graph import captured
from torch.profiler import ProfilerActivity, profile

ROOT = pathlib.Path(__file__).resolve().parents[1]
SLOTS, INNER = 16, 24


def make_layer(form, length, tokens, dropout, backward, width=256, heads=4):
    """A function of no arguments that runs the layer, and with `backward` its gradients too."""
    torch.manual_seed(0)
    random = lambda *shape, scale=1.0: (torch.randn(*shape, device="cuda") * scale).bfloat16()
    matrix = lambda *shape: random(*shape, scale=width**-0.5)
    batch, slots, per_head = tokens // length, heads * SLOTS, -(-INNER // heads)
    x, z = random(tokens, width), matrix(SLOTS, width)
    begin = torch.arange(batch, device="cuda") * length
    end = begin + length
    rng = torch.tensor([1, 2], device="cuda")
    restore = [matrix(slots, width), random(slots), random(width)]
    if form == "paper":
        weights = [matrix(width, width), random(width), matrix(width, width), random(width), matrix(width, width),
                   random(width), random(heads, width // heads, per_head), None, None, None, None,
                   matrix(width, width), None]
        own = [matrix(slots, width), random(slots)]
        score_rows = lambda: torch.ops.dba.fold_stack(z, [weights[0], weights[2]], [None, None], *own, heads,
                                                      (width // heads) ** -0.5)
    else:
        inner = heads * per_head
        weights = [matrix(inner, width), random(inner), matrix(inner, width), random(inner), matrix(width, width),
                   random(width), None, matrix(width, width), random(width), random(width), random(width),
                   matrix(width, width), None]
        own = [matrix(inner, width), random(inner), matrix(inner, width), random(inner)]
        score_rows = lambda: torch.ops.dba.fold_stack(torch.nn.functional.linear(z, own[0], own[1]), [own[2]],
                                                      [own[3]], None, None, heads, per_head**-0.5)

    def forward():
        rows, bias = score_rows()
        return torch.ops.dba.attention(x, begin, end, None, None, rows, bias, 0, weights, *restore, heads,
                                       False, dropout, rng)[0]

    if not backward:
        return torch.no_grad()(forward)
    operands = [t.requires_grad_() for t in [x, z, *own, *restore, *weights] if t is not None]
    dy = random(tokens, width)
    return lambda: torch.autograd.grad(forward(), operands, dy)


def device_time(run, repeats=4):
    """Milliseconds of device time, the median of fifteen replays."""
    graph = captured(run, repeats)
    times = []
    for _ in range(15):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / repeats)
    return statistics.median(times)


def peak_memory(run):
    """Megabytes at the peak above what is held before and after."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - held) / 1e6


def print_kernels(run, calls=5):
    """Each kernel's time in a call. Kernels that start early include their wait for the one before."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
    for event in sorted(profiler.key_averages(), key=lambda e: -e.device_time_total):
        if event.device_time_total > 0:
            name = event.key.replace("(anonymous namespace)::", "").removeprefix("void ")
            print(f"    {event.device_time_total / calls:8.1f} us  {event.count / calls:3.0f} ×  {name[:88]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, default=ROOT / "build/release/lib",
                        help="the folder of libdba.so and libdba_cuda.so")
    parser.add_argument("--lengths", type=lambda text: [int(n) for n in text.split(",")],
                        default=[256, 1024, 4096, 16384, 65536, 1048576])
    parser.add_argument("--tokens", type=int, default=131072, help="in all; a longer sequence stands alone")
    parser.add_argument("--width", type=int, default=256, help="of a token")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--backward-length", type=int, default=4096)
    parser.add_argument("--kernels", action="store_true", help="list the kernels of each case")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "gpu_kernels.py: needs a CUDA GPU\n")
    for name in ("libdba.so", "libdba_cuda.so"):
        torch.ops.load_library(str(arguments.library / name))
    sizes = dict(width=arguments.width, heads=arguments.heads)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16, {arguments.tokens} tokens, "
          f"d = {arguments.width}, H = {arguments.heads}")
    for form in ("paper", "released"):
        for length in arguments.lengths:
            run = make_layer(form, length, max(length, arguments.tokens), 0.0, backward=False, **sizes)
            print(f"forward  {form:8} n = {length:7}: {device_time(run):.4f} ms", flush=True)
            if arguments.kernels:
                print_kernels(run)
        for dropout in (0.0, 0.1):
            run = make_layer(form, arguments.backward_length, arguments.tokens, dropout, backward=True, **sizes)
            print(f"forward + backward {form:8} n = {arguments.backward_length}, dropout {dropout}: "
                  f"{device_time(run, 2):.4f} ms, {peak_memory(run):.0f} MB", flush=True)
            if arguments.kernels:
                print_kernels(run)


if __name__ == "__main__":
    main()
