#!/usr/bin/env python3
"""DBAClassifier on a data set of the UEA archive, whose files have the ending .ts: fits on one, measures on the other.

  python3 examples/uea.py JapaneseVowels_TRAIN.ts JapaneseVowels_TEST.ts --seeds 0,1,2
"""

from __future__ import annotations

import argparse
import pathlib
import time

import numpy
import torch

from dba.sklearn import DBAClassifier


def read_ts(path: pathlib.Path) -> tuple[list[numpy.ndarray], numpy.ndarray]:
    """Series (time, channels) of any lengths, NaN where a value is missing, and their labels."""
    series, labels = [], []
    lines = iter(path.read_text().splitlines())
    for line in lines:
        if line.strip().lower() == "@data":
            break
    for line in lines:
        if line.strip():
            *channels, label = line.strip().split(":")
            values = [[float("nan") if value == "?" else float(value) for value in channel.split(",")]
                      for channel in channels]
            length = max(map(len, values))
            series.append(numpy.array([channel + [float("nan")] * (length - len(channel)) for channel in values]).T)
            labels.append(label)
    return series, numpy.array(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=pathlib.Path)
    parser.add_argument("test", type=pathlib.Path)
    parser.add_argument("--seeds", default="0", help="default %(default)s")
    parser.add_argument("--method", default="dba", choices=["dba", "softmax"])
    parser.add_argument("--verbose", type=int, default=0)
    arguments = parser.parse_args()
    X, y = read_ts(arguments.train)
    X_test, y_test = read_ts(arguments.test)
    print(f"{len(X)} series of {X[0].shape[1]} channels to learn from, {len(X_test)} to test, "
          f"{len(set(y))} classes, {torch.get_num_threads()} threads")
    for seed in map(int, arguments.seeds.split(",")):
        began = time.monotonic()
        model = DBAClassifier(method=arguments.method, random_state=seed, verbose=arguments.verbose).fit(X, y)
        print(f"seed {seed}: accuracy {model.score(X_test, y_test):.1%}, {model.n_iter_} epochs in "
              f"{time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
