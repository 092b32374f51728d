"""How far a fit has come: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_WIDTH = 24
_LINES = 10  # of a whole fit, where there is no terminal


class Progress:
    """verbose 0 prints nothing, 1 shows the bar or some lines, 2 prints a line for every epoch."""

    def __init__(self, epochs: int, verbose: int, stream: TextIO | None = None) -> None:
        self.epochs = epochs
        self.verbose = verbose
        self.stream = stream if stream is not None else sys.stderr
        self.bar = verbose == 1 and self.stream.isatty()
        self.began = time.monotonic()
        self.shown = 0

    def epoch(self, done: int, words: str) -> None:
        """`done` epochs are over; `words` says how they went."""
        if self.verbose == 0:
            return
        spent = time.monotonic() - self.began
        left = spent / done * (self.epochs - done)
        line = f"{done}/{self.epochs} epochs  {words}  {spent:.0f} s, at most {left:.0f} s left"
        if self.bar:
            filled = _WIDTH * done // self.epochs
            text = f"\r[{'#' * filled}{'.' * (_WIDTH - filled)}] {line}"
            self.stream.write(text.ljust(self.shown))
            self.shown = len(text)
            self.stream.flush()
        elif self.verbose > 1 or done == 1 or done == self.epochs or done % max(1, self.epochs // _LINES) == 0:
            print(f"DBAClassifier: {line}", file=self.stream)

    def close(self, words: str) -> None:
        """The last words, on a line of their own."""
        if self.verbose == 0:
            return
        print(f"{chr(10) if self.bar and self.shown else ''}DBAClassifier: {words}", file=self.stream)
