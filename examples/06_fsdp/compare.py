"""Lays runs beside each other: compare.py RUN RUN ...

Prints what a rank held in the mean at the worst moment of a step, in MB, how fast the middle step was, and how far losses are from those of the first run.
"""
import json
import pathlib
import statistics
import sys

COLUMNS = ("parameters", "gradients", "optimizer", "activations")


def main():
    reference = None
    print(f"{'run':<18}" + "".join(f"{name:>12}" for name in (*COLUMNS, "all")) + f"{'ms a step':>11}{'apart':>9}")
    for run in sys.argv[1:]:
        steps = [json.loads(line) for line in pathlib.Path(run, "metrics.jsonl").read_text().splitlines()]
        ranks = json.loads(pathlib.Path(run, "memory.json").read_text())["ranks"]
        losses = [step["loss"] for step in steps if "loss" in step]
        reference = reference or losses
        apart = max(abs(a - b) / b for a, b in zip(losses, reference))
        held = "".join(f"{statistics.mean(rank[name] for rank in ranks) / 1e6:>12.1f}" for name in (*COLUMNS, "peak_bytes"))
        milliseconds = 1e3 * statistics.median(step["tokens"] / step["step"] / step["tokens_per_s"] for step in steps if "loss" in step)
        print(f"{run:<18}{held}{milliseconds:>11.0f}{apart:>9.1e}")


main()
