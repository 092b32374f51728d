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
import json
import os
import pathlib
import sys

import torch

from layer_table.columns import NAMES, USUAL, find_library, load_library
from layer_table.measuring import measure
from layer_table.table import add_ratios, machine, print_rows

ROOT = pathlib.Path(__file__).resolve().parents[1]
LENGTHS = [256, 1024, 4096, 16384, 65536, 1048576]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda kind: lambda text: [kind(word) for word in text.split(",")]
    parser.add_argument("--library", type=pathlib.Path,
                        default=os.environ.get("DBA_LIBRARY", ROOT / "build" / "release" / "lib"),
                        help="libdba.so or its folder; else what DBA_LIBRARY names, else the build's")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--tokens", type=int, default=131072, help="in all; a longer sequence stands alone")
    parser.add_argument("--lengths", type=listed(int), default=LENGTHS)
    parser.add_argument("--backward-lengths", type=listed(int), default=[4096], help="lengths of forward + backward")
    parser.add_argument("--forms", type=listed(str), default=["paper", "released"])
    parser.add_argument("--columns", type=listed(str), default=USUAL, help=f"of {', '.join(NAMES)}")
    parser.add_argument("--passes", default="both", choices=["forward", "backward", "both"])
    parser.add_argument("--cache", default="warm", choices=["warm", "cold"])
    parser.add_argument("--no-compile", action="store_true", help="leave out the columns of torch.compile")
    for name, value in (("d", 256), ("heads", 4), ("d_p", 16), ("d_in", 24)):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--repeats", type=int, default=30, help="samples of a figure, at most")
    parser.add_argument("--seconds", type=float, default=2.0, help="for a figure; three samples are taken in any case")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures there")
    arguments = parser.parse_args()
    unknown = set(arguments.columns) - set(NAMES)
    if unknown or set(arguments.forms) - {"paper", "released"}:
        parser.error(f"unknown columns or forms: {', '.join(sorted(unknown) or arguments.forms)}")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA GPU that torch can use; choose --device cpu")
    if "dba" in arguments.columns:
        try:
            arguments.library = find_library(arguments.library)
        except FileNotFoundError as reason:
            parser.error(str(reason))
    return arguments


def main() -> int:
    """0; 1 where a column was wrong; 130 where it was stopped."""
    arguments = parse()
    if "dba" in arguments.columns:
        with_cuda = load_library(arguments.library)
        if arguments.device == "cuda" and not with_cuda:
            print(f"{arguments.library.parent} holds no libdba_cuda.so: the column dba shows the reference",
                  file=sys.stderr)
    facts = machine(arguments.device, arguments.library)
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
                    add_ratios(rows)
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
