"""Lays the losses of runs beside each other: compare.py [--within TOLERANCE] RUN RUN ...

Exits with 1 when a loss differs from the first run's by more than the tolerance, relative. It is 1e-5 unless given: what sums in another order may cost in float32.
"""
import argparse
import json
import pathlib
import sys


def losses(run):
    return [json.loads(line)["loss"] for line in pathlib.Path(run, "metrics.jsonl").read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--within", type=float, default=1e-5, metavar="TOLERANCE")
    parser.add_argument("runs", nargs="+", metavar="RUN")
    arguments = parser.parse_args()
    runs = {run: losses(run) for run in arguments.runs}
    first, *others = runs
    print("step  " + "".join(f"{run:<22}" for run in runs))
    for step, row in enumerate(zip(*runs.values()), 1):
        print(f"{step:<6}" + "".join(f"{loss:<22.17g}" for loss in row))
    largest = {run: max(abs(a - b) / abs(a) for a, b in zip(runs[first], runs[run])) for run in others}
    print(f"largest relative difference to {first}:  " + "  ".join(f"{run} {value:.1e}" for run, value in largest.items()))
    for i, run in enumerate(runs):
        for other in list(runs)[i + 1:]:
            if runs[run] == runs[other]:
                print(f"{run} and {other} are equal to the last bit")
    sys.exit(any(value > arguments.within for value in largest.values()))


main()
