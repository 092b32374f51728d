#!/usr/bin/env python3
"""Times every member of the zoo beside a straightforward PyTorch version of the same method, in turns.

The versions are those of plain_zoo.py. Before anything is timed both must give the same numbers in float64. Reformer is
set against LSHAttention of reformer-pytorch where that is installed.

On a GPU --graph records each call once as a CUDA graph and times replays: what the GPU needs, without the time in which
Python and PyTorch hand it the work. What cannot be recorded is timed as it is called, and says so.

  bench/zoo_speed.py --lengths 1024,4096
  bench/zoo_speed.py --device cuda --dtype bfloat16 --batch 32 --graph --members performer,longformer
"""

import argparse
import pathlib
import statistics
import sys
import time

import torch
from cuda_graph import captured
from plain_zoo import BANDS, HEADS, MULTIPLE_OF, PLAIN, WHOLE_MAP, WIDTH

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))
import dba  # noqa: E402


def make(name, length, **options):
    if name == "bigbird":
        options["random"] = 0
    if name == "reformer":
        options["buckets"] = length // 64
    if dba.zoo.member(name).capabilities.needs_max_length:
        options["max_length"] = length
    torch.manual_seed(1)
    return dba.zoo.make(name, WIDTH, HEADS, **options)


def difference(name, length=256):
    """The largest difference of the two in float64, relative to the largest output."""
    layer = make(name, length).double().eval()
    x = torch.randn(2, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ours, plain = layer(x)[0], PLAIN[name](layer, x)
    return ((ours - plain).abs().max() / ours.abs().max()).item()


def calls(name, length, batch, device, dtype):
    """Calls of ours and of the plain version, forward alone and with backward."""
    layer = make(name, length).to(device=device, dtype=dtype)
    x = torch.randn(batch, length, WIDTH, device=device).to(dtype).requires_grad_()
    leaves = [x, *layer.parameters()]

    def forward(function):
        with torch.no_grad():
            function(layer, x)

    def both(function):
        torch.autograd.grad(function(layer, x).sum(), leaves, allow_unused=True)

    ours = lambda layer, x: layer(x)[0]
    return {"forward": [lambda f=f: forward(f) for f in (ours, PLAIN[name])],
            "forward+backward": [lambda f=f: both(f) for f in (ours, PLAIN[name])]}


def graph_of(call):
    """None where the call cannot be recorded."""
    try:
        return captured(call)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        torch.cuda.synchronize()
        return None


def seconds_of(call, device):
    if device == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def medians(pair, device, seconds):
    """Median seconds of both, sample by sample in turns."""
    samples = [[], []]
    for call in pair:
        call()
    while len(samples[0]) < 3 or (sum(map(sum, samples)) < seconds and len(samples[0]) < 400):
        for call, mine in zip(pair, samples):
            mine.append(seconds_of(call, device))
    return [statistics.median(mine) for mine in samples]


def lengths(text):
    numbers = [int(part) if part.isdigit() else 0 for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"must be numbers of tokens from 1 on, with commas between, got {text}")
    return numbers


def names(text):
    try:
        return [dba.zoo.member(name).name for name in text.split(",")]
    except ValueError as unknown:
        raise argparse.ArgumentTypeError(str(unknown)) from None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--lengths", default="1024,4096", type=lengths,
                        help="default %(default)s; plain versions of some members take whole blocks alone")
    parser.add_argument("--batch", type=int, default=2, help="default %(default)s")
    parser.add_argument("--members", default=",".join(PLAIN), type=names, help="default: all")
    parser.add_argument("--graph", action="store_true", help="time replays of CUDA graphs")
    parser.add_argument("--seconds", type=float, default=0.3, help="spent on a figure, about; default %(default)s")
    arguments = parser.parse_args()
    if arguments.graph and arguments.device != "cuda":
        parser.error("--graph needs --device cuda")
    where = torch.cuda.get_device_name() if arguments.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{where}, torch {torch.__version__}, {arguments.dtype}, {arguments.batch} sequences, d {WIDTH}, "
          f"{HEADS} heads; times in ms\n")
    print("| member | compared with | n | pass | ours | plain | times faster |\n|---|---|---:|---|---:|---:|---:|")
    slower = 0
    for name in arguments.members:
        try:
            apart = difference(name)
        except ImportError as missing:
            print(f"| {name} | {missing} | | | | | |")
            continue
        if not apart < 1e-6:
            print(f"| {name} | differs by {apart:.1e} | | | | | |")
            slower += 1
            continue
        what = ("LSHAttention" if name == "reformer" else "a masked map" if name in WHOLE_MAP else
                "blocks of a band" if name in BANDS else "plain products")
        for length in arguments.lengths:
            if length % MULTIPLE_OF.get(name, 1):
                print(f"| {name} | {what} takes multiples of {MULTIPLE_OF[name]} tokens | {length:,} | | | | |")
                continue
            pairs = calls(name, length, arguments.batch, arguments.device, getattr(torch, arguments.dtype))
            for which, pair in pairs.items():
                try:
                    graphs = [graph_of(call) for call in pair] if arguments.graph else []
                    replayed = bool(graphs) and all(graphs)
                    pair = [graph.replay for graph in graphs] if replayed else pair
                    ours, plain = medians(pair, arguments.device, arguments.seconds)
                except torch.OutOfMemoryError:
                    print(f"| {name} | {what} | {length:,} | {which} | | does not fit | |", flush=True)
                    continue
                slower += ours > plain
                how = "" if replayed or not arguments.graph else ", called"
                print(f"| {name} | {what} | {length:,} | {which}{how} | {1e3 * ours:.3g} | {1e3 * plain:.3g} | "
                      f"{plain / ours:.2f} |", flush=True)
    print(f"\n{slower} slower than the plain version")


if __name__ == "__main__":
    main()
