"""`python -m dba info`, and the commands of the program that are written in Python; any other command is the
program's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import dba_program

# Modules with a function main(arguments) that returns the exit status.
COMMANDS = {"info": "dba.info", "plot": "dba.figures.program", "export": "dba.export"}


def main(arguments: Sequence[str]) -> int:
    """The exit status; where the command is the program's, this process becomes the program."""
    if arguments and arguments[0] in COMMANDS:
        return importlib.import_module(COMMANDS[arguments[0]]).main(list(arguments[1:]))
    dba_program.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
