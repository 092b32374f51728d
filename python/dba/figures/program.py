"""`dba plot`: the figures from a shell, as SVG, PNG or PDF."""

from __future__ import annotations

import argparse
import pathlib
import sys
import warnings
from collections.abc import Sequence

from . import curves, lengths
from .confusion import confusion_matrix
from .efficiency import LENGTHS, efficiency_panels
from .lra import lra_curves
from .look import pyplot, save
from .series import series_picture

EXAMPLES = """Examples:
  dba plot curves runs/first runs/second --metric loss     learning curves of two runs
  dba plot lengths layer.json                              time and memory, from dba bench layer --json layer.json
  dba plot lra results/lra --methods dba,softmax           training curves, from dba reproduce lra
  dba plot efficiency results/efficiency                   the paper's figure 1, from dba reproduce efficiency
  dba plot confusion runs/first                            on the run's test file
  dba plot uea runs/vowels                                 mean series, confusion and compression of a run on series
  dba plot weights runs/image --input new.jsonl --side 32  what each slot takes of each pixel
Exit status: 0 done, 1 failed, 2 wrong usage."""


def parser() -> argparse.ArgumentParser:
    """Of the words behind `dba plot`."""
    whole = argparse.ArgumentParser(prog="dba plot", description="Draw runs, measurements and attention.",
                                    epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = whole.add_subparsers(dest="kind", required=True, metavar="KIND")

    def kind(name: str, meaning: str) -> argparse.ArgumentParser:
        one = kinds.add_parser(name, help=meaning, description=meaning, epilog=EXAMPLES,
                               formatter_class=argparse.RawDescriptionHelpFormatter)
        one.add_argument("--output", type=pathlib.Path, help="SVG, PNG or PDF by its ending; default: an SVG beside "
                                                             "what is drawn")
        return one

    one = kind("curves", "a metric over the updates of one run or several")
    one.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN")
    one.add_argument("--metric", default="accuracy", help="accuracy, loss, macro_f1 or lr; default %(default)s")
    one.add_argument("--part", choices=["train", "validation", "test"],
                     help="this part alone; test: of a run with train.watch_test")
    one = kind("lengths", "time and memory over the length, one line per method")
    add_lengths(one)
    one = kind("lra", "training loss and validation accuracy of the results of dba reproduce lra")
    one.add_argument("results", type=pathlib.Path, help="the folder of the results, results/lra")
    one.add_argument("--tasks", type=_names, help="these alone, as in image,text; default: all that have results")
    one.add_argument("--methods", type=_names, help="these alone, as in dba,softmax; default: all that have results")
    one.add_argument("--variant", default="", help="runs of this variant, such as shortened ones; default: whole runs")
    one = kind("efficiency", "speed, memory and accuracy of every attention, one panel per length")
    one.add_argument("results", type=pathlib.Path, help="results/efficiency, or a file of it")
    one.add_argument("--lengths", type=_numbers, default=LENGTHS, help="a panel each; default 512,4096")
    one.add_argument("--pass", dest="what", default="training", choices=["training", "inference"])
    one.add_argument("--baseline", default="unfused", choices=["unfused", "fused"])
    one = kind("confusion", "true classes against predicted ones")
    one.add_argument("run", type=pathlib.Path, help="a run, or the output of dba evaluate --json")
    one.add_argument("--part", default="test", choices=["test", "validation"], help="of the run; default %(default)s")
    one.add_argument("--counts", action="store_true", help="colours by count, not by the share of the true class")
    one = kind("uea", "a run on time series: mean series per class, confusion matrix, where the compression looks")
    one.add_argument("run", type=pathlib.Path)
    one.add_argument("--input", type=pathlib.Path, help="labelled series: .ts, JSON lines or long CSV; default: the "
                                                        "run's test file")
    one.add_argument("--channels", type=_numbers, help="whose means are drawn, counted from 1, as in 1,3; default: the "
                                                       "two that tell most")
    one.add_argument("--examples", type=int, default=3,
                     help="compression matrices, of a class each; default %(default)s")
    one.add_argument("--layer", type=int, default=0, help="of the compression, counted from 0; default %(default)s")
    one = kind("weights", "what the slots take of the tokens of one sequence, and the tokens of the slots")
    one.add_argument("run", type=pathlib.Path)
    one.add_argument("--input", required=True, help="examples as JSON lines, or series as .ts or long CSV; - is "
                                                    "standard input, JSON lines")
    one.add_argument("--index", type=int, default=0, help="which example of the file; default the first, %(default)s")
    one.add_argument("--layer", type=int, default=0, help="counted from 0; default %(default)s")
    one.add_argument("--head", type=int, help="default: the mean over all heads")
    one.add_argument("--which", default="w_r", choices=["w_r", "w_c", "w_c_prime", "w_r_prime"],
                     help="W_r, W_c, W_c' (compression) or W_r' (reconstruction); default %(default)s")
    one.add_argument("--side", type=int, help="the tokens are the pixels of a square image of so many rows")
    return whole


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def add_lengths(one: argparse.ArgumentParser) -> None:
    """The arguments of `dba plot lengths`."""
    one.add_argument("result", type=pathlib.Path, help="written by dba bench … --json")
    one.add_argument("--pass", dest="what", help="draw this one of the passes alone")
    one.add_argument("--cache", default="warm", choices=["warm", "cold"])
    one.add_argument("--dtype", help="draw this one of the dtypes; default: the first")


def _beside(path: pathlib.Path, name: str) -> pathlib.Path:
    """In the run's folder, or beside the file with another ending."""
    return path / f"{name}.svg" if path.is_dir() else path.with_suffix(".svg")


def _draw(arguments: argparse.Namespace) -> tuple[object, pathlib.Path]:
    """The figure, and where it goes unless the user says."""
    if arguments.kind == "curves":
        parts = (arguments.part,) if arguments.part else ("train", "validation")
        axes = curves.learning_curves(arguments.runs, arguments.metric, parts)
        return axes.figure, _beside(arguments.runs[0], f"curves-{arguments.metric}")
    if arguments.kind == "lengths":
        axes = lengths.bench_panels(arguments.result, arguments.what, arguments.cache, arguments.dtype)
        return axes[0][0].figure, _beside(arguments.result, "lengths")
    if arguments.kind == "lra":
        axes = lra_curves(arguments.results, arguments.tasks, arguments.methods, arguments.variant)
        return axes[0][0].figure, _beside(arguments.results, "curves")
    if arguments.kind == "efficiency":
        axes = efficiency_panels(arguments.results, arguments.lengths, arguments.what, arguments.baseline)
        return axes[0].figure, _beside(arguments.results, "figure1")
    if arguments.kind == "confusion":
        axes = confusion_matrix(arguments.run, part=arguments.part, share=not arguments.counts)
        return axes.figure, _beside(arguments.run, f"confusion-{arguments.part}")
    if arguments.kind == "uea":
        figure = series_picture(arguments.run, arguments.input, arguments.channels, arguments.examples, arguments.layer)
        return figure, _beside(arguments.run, "series")
    from .of_model import draw_weights

    figure = draw_weights(arguments.run, arguments.input, arguments.index, arguments.layer, arguments.head,
                          arguments.which, arguments.side)
    return figure, _beside(arguments.run, f"weights-{arguments.which}")


def run(arguments: argparse.Namespace) -> int:
    """Draws, writes, and prints where."""
    try:
        pyplot().switch_backend("Agg")
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"dba plot: {message}", file=sys.stderr)
            figure, beside = _draw(arguments)
        output = arguments.output or beside
        save(figure, output)
    except (ImportError, OSError, ValueError, RuntimeError) as reason:
        print(f"dba plot: {reason}", file=sys.stderr)
        return 1
    print(output)
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """`dba plot`: the exit status."""
    return run(parser().parse_args(words))
