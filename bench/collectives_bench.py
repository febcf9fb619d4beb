#!/usr/bin/env python3
"""Collectives between two ranks of this host, `shoal bench collectives`, beside what else there is on the same machine in the same minutes:
plain loops over shared memory (bench/peers/floor.cpp), Open MPI (mpi_collectives.c) and PyTorch over Gloo (torch_collectives.py).

A case is operation/peer/size class; its figures are the p50 of the size of that class where the ratio is lowest, in microseconds. Every program checks
its answers. `tail` cases report the median over blocks of our p99 over our p50, at sizes where the floor's own is within 1.5. Two cores of a virtual
machine may lie on one physical core in one second and on two in the next, which changes every small figure by two or three: therefore small sizes run
in many short blocks. bench/run.py says how this program is called.
"""
import pathlib
import statistics
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import comparison  # noqa: E402

WORLD = 2
KIB, MIB = 1 << 10, 1 << 20
# (most MiB, rounds of two blocks a side, seconds a size): a run of a side goes up to that size, and sizes that an earlier line covers are not counted.
PARTS = ((1, 6, 0.03), (256, 2, 0.2))
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
ALL = range(0, 256 * MIB + 1)
# peer: {size class: (sizes, limit)}: the floor is a bound that nobody passes, so its limits are below 1.
CLASSES = {
    "floor": {"to-16KiB": (range(0, 16 * KIB + 1), 1 / 2.5), "64KiB": (range(16 * KIB + 1, 64 * KIB + 1), 1 / 1.7),
              "256KiB-1MiB": (range(64 * KIB + 1, MIB + 1), 1 / 1.4), "from-4MiB": (range(MIB + 1, 256 * MIB + 1), 1 / 1.35)},
    "mpi": {"from-1KiB": (range(KIB, 256 * MIB + 1), 1.0)},
    "gloo": {"all": (ALL, 1.0)},
    "mpi-foreign": {"from-1MiB": (range(MIB, 256 * MIB + 1), 2.0)},
    "tail": {"to-1MiB": (range(0, MIB + 1), 1 / 2)},
}
CASES = {f"collectives/{operation}/{peer}/{size}": (operation, peer, size)
         for operation in OPERATIONS for peer, sizes in CLASSES.items() for size in sizes}


def compiled(source, compiler, *flags):
    """The program made of a source beside this file, built when it is older."""
    source, program = comparison.PEERS / source, comparison.ROOT / "build" / "peers" / pathlib.Path(source).stem
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([compiler, *flags, source, "-o", program], capture_output=True, text=True)
        if done.returncode != 0:
            raise comparison.Failed(f"{compiler} {source}: {done.stderr}")
    return program


def printed(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=comparison.ROOT, timeout=600)
    if done.returncode != 0:
        raise comparison.Failed(f"{' '.join(map(str, command))} exited with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def shoal(operation, least, most, seconds, *options):
    return printed([comparison.ROOT / "build" / "release" / "bin" / "shoal", "bench", "collectives", "--nproc", WORLD, "--op", operation, "--bytes",
                    f"{least}:{most * MIB}", "--factor", 4, "--seconds", seconds, "--json", *options])


def floor(operation, least, most, seconds):
    return printed([compiled("floor.cpp", "g++", "-O3", "-march=native", "-std=c++20"), WORLD, most, operation])


def mpi(operation, least, most, seconds):
    comparison.setup("mpi")
    return printed(["mpirun", "--allow-run-as-root", "--bind-to", "core", "-np", WORLD, compiled("mpi_collectives.c", "mpicc", "-O2"), most, seconds, operation])


def gloo(operation, least, most, seconds):
    comparison.setup("torch")
    return comparison.torch_ranks("torch_collectives.py", ["--ops", operation, "--seconds", 0.2], WORLD)


SIDES = {"ours": shoal, "ours-foreign": lambda *arguments: shoal(*arguments, "--foreign"), "floor": floor, "mpi": mpi}


def run_sides(operation, sides):
    """{side: {bytes: [one result a block]}}: every side once, then once more in the reverse order, as often as PARTS says. Gloo, ten times slower
    than any of them, runs twice, around the rest."""
    results = {side: {} for side in sides}

    def run(side, program, least, most, seconds):
        for result in comparison.objects(program(operation, least, most, seconds)):
            if result["bytes"] >= least:
                results[side].setdefault(result["bytes"], []).append(result)

    alternating = [side for side in SIDES if side in sides]
    if "gloo" in sides:
        run("gloo", gloo, 4, 256, 0)
    least = 4
    for most, rounds, seconds in PARTS:
        for _ in range(rounds):
            for side in [*alternating, *reversed(alternating)]:
                run(side, SIDES[side], least, most, seconds)
        least = 4 * most * MIB
    if "gloo" in sides:
        run("gloo", gloo, 4, 256, 0)
    return results


def worst(ours, peer, sizes):
    """The comparison at the size of the class where we look worst."""
    def blocks(results, size):
        return [[result["us_p50"]] for result in results[size]]

    found = [(*comparison.compare(blocks(ours, size), blocks(peer, size)), size) for size in ours if size in sizes and size in peer]
    if not found:
        raise comparison.Failed("no size was measured on both sides")
    return min(found, key=lambda one: one[2])


def report(case, results):
    operation, peer, size_class = CASES[case]
    sizes, limit = CLASSES[peer][size_class]
    if peer == "tail":
        def tail_of(side, size):
            return statistics.median(block["us_p99"] / block["us_p50"] for block in results[side][size])

        tails = [(tail_of("ours", size), size) for size in results["ours"]
                 if size in sizes and size in results["floor"] and tail_of("floor", size) <= 1.5]
        if not tails:
            print(f"{case}: the floor itself is not steady here; nothing to hold ours to", file=sys.stderr)
            comparison.emit(case, "p99/p50", None)
            return
        tail, size = max(tails)
        comparison.emit(case, "p99/p50", tail, 1.0, 1 / tail, None, limit, bytes=size)
        return
    ours = results["ours-foreign" if peer == "mpi-foreign" else "ours"]
    us, them, ratio, spread, size = worst(ours, results["mpi" if peer == "mpi-foreign" else peer], sizes)
    table = {side: {size: [block["us_p50"] for block in blocks] for size, blocks in by_size.items()} for side, by_size in results.items()}
    comparison.emit(case, "us", us, them, ratio, spread, limit, bytes=size, p50=table)


NEEDS = {"floor": {"ours", "floor"}, "mpi": {"ours", "mpi"}, "gloo": {"ours", "gloo"}, "mpi-foreign": {"ours-foreign", "mpi"}, "tail": {"ours", "floor"}}


def main(cases):
    failed = False
    for operation in OPERATIONS:
        chosen = [case for case in cases if CASES[case][0] == operation]
        needed = set().union(*(NEEDS[CASES[case][1]] for case in chosen))
        results = {}
        try:
            results = run_sides(operation, needed)
            for case in chosen:
                report(case, results)
        except comparison.Failed as failure:
            failed = True
            print(f"collectives/{operation}: {failure}", file=sys.stderr)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    comparison.stop_cleanly()
    main(comparison.asked(CASES))
