"""The command `shoal` that pip installs: it becomes the program that lies in the package."""
import importlib.util
import os
import pathlib
import sys


def main():
    # The package is looked for and not imported, because it imports PyTorch, which takes seconds.
    package = pathlib.Path(importlib.util.find_spec("shoal").origin).parent
    program = package / "program" / "bin" / "shoal"
    if not program.exists():
        sys.exit("shoal: this wheel carries the backend for PyTorch alone, without the program. It was built with SHOAL_PROGRAM=0 or for a PyTorch "
                 "other than 2.11; `make install` in a clone of Shoal installs the program by itself.")
    os.execv(program, ["shoal", *sys.argv[1:]])
