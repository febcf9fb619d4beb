#!/usr/bin/env python3
"""Runs the measuring programs and gathers what they print.

A measuring program is build/release/bin/<name>_bench, or bench/<name>_bench.py. Called with --list it prints its cases, one name a line,
and measures nothing; called with names of cases it prints one JSON object a line for each:
    case, unit, ours, peer, ratio, spread, limit
`ratio` is the ratio of the medians of ours and the peer, measured alternately in this run, in the sense in which more is better; `spread` is
how far it varied; `limit` is what it must reach. peer, ratio, spread and limit are null where there is nothing to compare with. A program
checks its answers and exits with another code than 0 where they are wrong.

What they print is written, with the machine and the date added, to bench/results/latest.jsonl, which bench/page.py puts into docs/benchmarks.md; a
table goes to the terminal. The file has the last result of each case: also what was measured before a run was interrupted, and what earlier runs
measured. Exits with 1 when a program failed, a case printed nothing or a ratio is below its limit.
"""
import argparse
import datetime
import fnmatch
import json
import os
import pathlib
import platform
import subprocess
import sys

FIELDS = ("case", "unit", "ours", "peer", "ratio", "spread", "limit")


def machine():
    """Processor, its number, memory and kernel: what a figure depends on. Hypervisors give many processors one name, so family and model follow."""
    words = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, colon, word = line.partition(":")
        if colon:
            words.setdefault(key.strip(), word.strip())
    model = words.get("model name", platform.machine())
    if "cpu family" in words:
        model += f" (family {words['cpu family']} model {words['model']})"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, Linux {platform.release()}"


def programs(root, build):
    compiled = [[str(path)] for path in sorted((build / "bin").glob("*_bench")) if os.access(path, os.X_OK)]
    scripts = [[sys.executable, str(path)] for path in sorted((root / "bench").glob("*_bench.py"))]
    return compiled + scripts


def cases(program):
    listed = subprocess.run([*program, "--list"], capture_output=True, text=True)
    if listed.returncode != 0:
        sys.exit(f"bench: {program[-1]} --list failed:\n{listed.stderr}")
    return listed.stdout.split()


def shown(value):
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def row(words):
    return f"{words[0]:<40}" + "".join(f"  {word:>10}" for word in words[1:])


class Results:
    """The file of the last result of each case."""

    def __init__(self, path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self.lines = {json.loads(line)["case"]: line for line in lines}

    def add(self, result):
        # The last result stands last, so that the file tells in which order it was measured.
        self.lines.pop(result["case"], None)
        self.lines[result["case"]] = json.dumps(result)
        aside = self.path.with_suffix(".running")
        aside.write_text("".join(line + "\n" for line in self.lines.values()))
        aside.replace(self.path)


def run(program, chosen, results):
    """Runs the chosen cases of one program; returns what went wrong."""
    problems, seen = [], set()
    with subprocess.Popen([*program, *chosen], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            try:
                result = json.loads(line)
            except ValueError:
                print(line, end="", flush=True)  # words for people
                continue
            missing = [field for field in FIELDS if field not in result]
            if missing:
                problems.append(f"{program[-1]} printed an object without {', '.join(missing)}: {line.strip()}")
                continue
            seen.add(result["case"])
            print(row([shown(result[field]) for field in FIELDS]), flush=True)
            if result["limit"] is not None and result["ratio"] < result["limit"]:
                problems.append(f"{result['case']}: the ratio {result['ratio']:.3f} is below {result['limit']}")
            results.add({**result, "machine": machine(), "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}"})
    if process.returncode != 0:
        problems.append(f"{program[-1]} exited with {process.returncode}")
    problems += [f"{case}: printed no result" for case in chosen if case not in seen]
    return problems


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", help="cases to run, with * and ?; without any, all")
    parser.add_argument("--list", action="store_true", help="only name the cases")
    parser.add_argument("--root", type=pathlib.Path, default=root)
    parser.add_argument("--build", type=pathlib.Path, help="default: build/release")
    arguments = parser.parse_args()
    build = arguments.build or arguments.root / "build" / "release"

    plan = []
    for program in programs(arguments.root, build):
        names = cases(program)
        chosen = [name for name in names if not arguments.patterns or any(fnmatch.fnmatch(name, p) for p in arguments.patterns)]
        if chosen:
            plan.append((program, chosen))
    if not plan:
        sys.exit("bench: no case of that name" if arguments.patterns else f"bench: no measuring program in {build}/bin")
    if arguments.list:
        print("\n".join(name for _, chosen in plan for name in chosen))
        return

    results = Results(arguments.root / "bench" / "results" / "latest.jsonl")
    print(machine())
    print(row(FIELDS))
    problems = []
    for program, chosen in plan:
        problems += run(program, chosen, results)
    for problem in problems:
        print(f"bench: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
