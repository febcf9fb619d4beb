#!/usr/bin/env python3
"""Writes what bench/run.py measured into docs/benchmarks.md, and the table of README.md and docs/speed.svg out of that page.

The page is also the store: a case that bench/results/latest.jsonl does not have keeps its row, with its own date and machine. Only cases with a
peer stand there. `--check` writes nothing and exits with 1 unless README.md's table and the picture are those that the page gives.
"""
import argparse
import fnmatch
import json
import pathlib
import re
import sys
import textwrap

import speed_picture

# (cases, heading, what the peer is)
SECTIONS = (
    ("collectives/*/gloo/*", "Collectives and Gloo in PyTorch", "two ranks of one machine over shared memory; the size in the range at which the ratio is lowest"),
    ("collectives/*/mpi/*", "Collectives and Open MPI", "as above"),
    ("collectives/*/mpi-foreign/*", "Collectives on memory from elsewhere, and Open MPI", "tensors that the other rank cannot map, which are copied through shared chunks"),
    ("collectives/*/floor/*", "Collectives and plain loops over shared memory", "the same as plain loops over memory that both ranks have mapped: a bound that nobody passes, so the ratio is below 1"),
    ("collectives/*/tail/*", "How much slower than the median one call in a hundred is", "p99 over p50"),
    ("tcp/*", "All-reduce over TCP and Gloo in PyTorch", "two ranks in two network namespaces; neither side encrypts"),
    ("wan/*", "All-reduce between distant sites and plain TCP connections", "128 MB over an emulated link of 200 Mbit/s in each direction and a round trip of 100 ms, beside 64 plain TCP connections; the last number of a case is how many rails Shoal has, and slow_rail compares them with themselves, one of them at a tenth of its rate"),
    ("low_communication/*", "Members that rarely exchange, and synchronous training", "two members, each a process at a site of its own, over an emulated link of 100 or 10 Mbit/s in each direction and a round trip of 50 ms; [what each case is](concepts/low_communication.md#measured)"),
    ("codec/*", "Codecs and memcpy", "fp32 that is encoded or decoded on one core, and copied; `error` is the error of normal values, in percent of their size"),
    ("train_step/*", "Training steps and PyTorch", "GPT-2 124M on two ranks; the last number of a case is the tokens of a rank; `fsdp_over_ddp` compares Shoal's own two"),
    ("parallel_step/*", "Tensor and pipeline parallel steps and PyTorch", "GPT-2 124M on two ranks"),
    ("unchanged/*", "Programs on Gloo, unchanged, and the same on Shoal", "two ranks of one thread train a small model, as [the programs](../tests/python/programs) are written"),
    ("train_memory/*", "Memory of training", "beside PyTorch's FSDP2 over Gloo, or beside what Shoal planned"),
    ("checkpoint/*", "Checkpoints", "beside torch.save, or beside training without saving"),
    ("plan/*", "What the planner predicts and what was measured", "ours is the prediction"),
    ("*", "Others", "as the case says"),
)
# The rows of README.md: words for a case. Those that the page lacks are left out there.
README = (
    ("collectives/all_reduce/gloo/all", "all-reduce in shared memory beside Gloo, the lowest ratio of all sizes"),
    ("collectives/all_reduce/mpi/from-1KiB", "all-reduce in shared memory beside Open MPI, the lowest ratio from 1 KiB on"),
    ("tcp/all_reduce/gloo/to-16KiB", "all-reduce over TCP beside Gloo, the lowest ratio up to 16 KiB"),
    ("tcp/all_reduce/gloo/from-1MiB", "all-reduce over TCP beside Gloo, the lowest ratio from 1 MiB on"),
    ("train_step/ddp/gpt2-124m/fp32/64", "DDP step of GPT-2 124M, 64 tokens a rank, beside PyTorch"),
    ("train_step/fsdp/gpt2-124m/fp32/64", "FSDP step of GPT-2 124M, 64 tokens a rank, beside PyTorch"),
    ("train_memory/fsdp/gpt2-124m/fp32/64", "memory of that FSDP step, beside PyTorch"),
)
INTRODUCTION = """# Benchmarks

`make bench` writes this page (`make bench CASES="tcp/*"` measures some cases, and the others keep
their rows). Shoal and its peer run in alternation on the same cores in the same minutes, with
answers checked ([how](../bench/peers/README.md)). The ratio is that of the medians, above 1 where
Shoal is better; the spread is how far the ratio varied between neighbouring blocks, as a part of
it; the limit is what the ratio must reach, or `make bench` fails. Times differ from machine to
machine and from day to day: compare ratios.
"""
PICTURE = "\n![Ratios to peers](speed.svg)\n"
COLUMNS = "| case | unit | Shoal | peer | ratio | spread | limit | measured | machine |\n|---|---|---|---|---|---|---|---|---|\n"
DATE = -2  # the cell of a row
BEGIN, END = "<!-- bench/page.py writes this table -->\n", "<!-- end of the table -->"


def number(value):
    """Three digits that count, without an exponent."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def read_page(text):
    """{case: row} of a page; a row is the cells behind the case, the machine in words."""
    machines = dict(re.findall(r"^- (\w+): (.*)$", text, re.M))
    rows = {}
    for case, cells in re.findall(r"^\| `([^`]+)` \| (.*) \|$", text, re.M):
        *values, machine = cells.split(" | ")
        rows[case] = [*(value.strip() for value in values), machines[machine.strip()]]
    return rows


def measured(lines):
    """The rows of bench/results/latest.jsonl that have a peer."""
    rows = {}
    for line in lines:
        result = json.loads(line)
        if result["peer"] is None or result["ratio"] is None:
            continue
        spread = "" if result["spread"] is None else f"{100 * result['spread']:.0f} %"
        rows[result["case"]] = [result["unit"], number(result["ours"]), number(result["peer"]), f"{number(result['ratio'])}×", spread,
                                number(result["limit"]), result["date"], result["machine"]]
    return rows


def section_of(case):
    return next(i for i, (pattern, _, _) in enumerate(SECTIONS) if fnmatch.fnmatch(case, pattern))


def write_page(rows):
    machines = sorted({row[-1] for row in rows.values()})
    letters = {machine: f"M{i + 1}" for i, machine in enumerate(machines)}
    text = INTRODUCTION + (PICTURE if shown(rows) else "")
    for i, (_, heading, words) in enumerate(SECTIONS):
        cases = sorted(case for case in rows if section_of(case) == i)
        if cases:
            text += f"\n## {heading}\n\n({words[0].upper()}{words[1:]}.)\n\n{COLUMNS}"
            text += "".join(f"| `{case}` | {' | '.join([*rows[case][:-1], letters[rows[case][-1]]])} |\n" for case in cases)
    text += "\n## Machines\n\n" + ("".join(f"- {letters[machine]}: {machine}\n" for machine in machines) or "Nothing has been measured yet.\n")
    return text


def in_words(ratio, spread):
    """The ratio, with a warning where it differs from 1 by less than half of the width in which it varied."""
    if not spread:
        return ratio
    value, width = float(ratio.rstrip("×").replace(",", "")), float(spread.split()[0]) / 100
    return f"no difference ({ratio}, {spread})" if abs(value - 1) < width * value / 2 else f"{ratio} ({spread})"


def shown(rows):
    return [(words, rows[case]) for case, words in README if case in rows]


def picture(rows):
    """The rows of README.md's table as bars; empty where there is none."""
    entries = []
    for words, (_, _, _, ratio, spread, *_) in shown(rows):
        part = float(spread.split()[0]) / 100 if spread else 0
        entries.append((words, float(ratio.rstrip("×").replace(",", "")), part, in_words(ratio, spread)))
    return speed_picture.picture("How many times as fast, or as small, as the peer", entries) if entries else ""


def readme_table(rows):
    there = shown(rows)
    if not there:
        return ""
    text = "\nMedians, measured in alternation with the peer ([all cases](docs/benchmarks.md)):\n\n| | Shoal | peer | ratio (spread) |\n|---|---|---|---|\n"
    for words, (unit, ours, peer, ratio, spread, _, _, _) in there:
        text += f"| {words} | {ours} {unit} | {peer} {unit} | {in_words(ratio, spread)} |\n"
    machines = sorted({row[-1] for _, row in there})
    below = ("Spread is how far the ratio varied during the measurement, as a part of it: a ratio that differs from 1 by less than half of that shows no difference. "
             f"Measured on {' and on '.join(machines)}.")
    return f"{text}\n{textwrap.fill(below, 100, break_on_hyphens=False)}\n\n"


def with_table(readme, table):
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"bench: README.md lacks the lines '{BEGIN.strip()}' and '{END}'")
    return before + begin + table + end + after


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--check", action="store_true", help="compare README.md with the page, and write nothing")
    arguments = parser.parse_args()
    page, readme, speed = arguments.root / "docs" / "benchmarks.md", arguments.root / "README.md", arguments.root / "docs" / "speed.svg"
    results = arguments.root / "bench" / "results" / "latest.jsonl"
    rows = read_page(page.read_text()) if page.exists() else {}
    if arguments.check:
        if readme.read_text() != with_table(readme.read_text(), readme_table(rows)):
            sys.exit("README.md's figures are not those of docs/benchmarks.md: bench/page.py writes them")
        if picture(rows) != (speed.read_text() if speed.exists() else ""):
            sys.exit("docs/speed.svg does not show the figures of docs/benchmarks.md: bench/page.py draws it")
        return
    if results.exists():
        # Of another day on another machine the page may know later results.
        later = {case: row for case, row in measured(results.read_text().splitlines()).items() if case not in rows or row[DATE] >= rows[case][DATE]}
        rows.update(later)
    page.write_text(write_page(rows))
    readme.write_text(with_table(readme.read_text(), readme_table(rows)))
    if drawn := picture(rows):
        speed.write_text(drawn)


if __name__ == "__main__":
    main()
