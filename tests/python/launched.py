"""Starts programs as a user does, with `python -m shoal.run` or torchrun, and reads what they print."""
import json
import os
import pathlib
import re
import subprocess
import sys
import time

PROGRAMS = pathlib.Path(__file__).parent / "programs"


def variables(**more):
    """The environment of a user's shell, without what a test of threads would see."""
    own = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return {**own, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **more}


def start(module, *arguments, **more):
    words = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.Popen(words, env=variables(**more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(*arguments, module="shoal.run", limit_s=120, **more):
    """(exit code, everything that was printed)"""
    process = start(module, *arguments, **more)
    try:
        output = process.communicate(timeout=limit_s)[0]
        return process.returncode, output
    finally:
        process.kill()


def run_timed(*arguments, limit_s=120, **more):
    """(exit code, [(when a line came, as time.time(), the line)])"""
    process = start("shoal.run", *arguments, **more)
    lines, end = [], time.monotonic() + limit_s
    try:
        for line in process.stdout:
            lines.append((time.time(), line.rstrip("\n")))
            assert time.monotonic() < end, lines
        return process.wait(timeout=limit_s), lines
    finally:
        process.kill()
        process.stdout.close()


def records(output):
    """{rank: the JSON line that it printed}"""
    return {int(rank): json.loads(text) for rank, text in re.findall(r"^\[(\d+)\] (\{\".*\})$", output, re.M)}
