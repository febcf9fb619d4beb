"""Lays the losses of runs in several precisions beside those of the first: compare.py RUN RUN ...

Prints how far apart they get, the steps that fp16 skipped, the speed of the middle step, and the most memory that tensors took on a rank.
"""
import json
import pathlib
import statistics
import sys


def lines(run):
    return [json.loads(line) for line in pathlib.Path(run, "metrics.jsonl").read_text().splitlines()]


def main():
    first, *others = sys.argv[1:]
    reference = lines(first)
    print(f"{'run':<18} {'first loss':>10} {'last loss':>10} {'apart':>8} {'skipped':>8} {'tokens/s':>9} {'MB a rank':>10}")
    for run in (first, *others):
        steps = lines(run)
        apart = max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(steps, reference))
        skipped = sum("skipped" in step for step in steps)
        speed = statistics.median(step["tokens_per_s"] for step in steps)
        ranks = json.loads(pathlib.Path(run, "memory.json").read_text())["ranks"]
        memory = statistics.mean(rank["peak_bytes"] for rank in ranks) / 1e6
        print(f"{run:<18} {steps[0]['loss']:>10.4f} {steps[-1]['loss']:>10.4f} {apart:>8.1e} {skipped:>8} {speed:>9.0f} {memory:>10.1f}")


main()
