#!/usr/bin/env python3
"""All-reduce over TCP between two network namespaces that a veth pair joins, one pinned rank in each: `shoal bench collectives --transport tcp` beside
PyTorch over Gloo (bench/peers/torch_collectives.py), alternately, in the same minutes. Neither encrypts: Gloo cannot.
Needs the right to make network namespaces.

A case is a class of sizes; its figures are the p50 of the size of that class where the ratio is lowest, in microseconds. `p50` has all of them.
bench/run.py says how this program is called.
"""
import contextlib
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import comparison  # noqa: E402

MIB, PORT, SECONDS = 1 << 20, 29683, 0.2
SPACES = ("shoal-bench-a", "shoal-bench-b")
ADDRESSES = ("10.213.7.1", "10.213.7.2")
# case: (sizes, limit)
CASES = {"tcp/all_reduce/gloo/to-16KiB": (range(0, 16384 + 1), 4.0), "tcp/all_reduce/gloo/from-1MiB": (range(MIB, 64 * MIB + 1), 1.0)}


def command(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise comparison.Failed(f"{' '.join(words)}: {done.stderr.strip()}")


@contextlib.contextmanager
def two_hosts():
    """Two network namespaces with an address each, on a link between them."""
    made = []
    try:
        for space in SPACES:
            command("ip", "netns", "add", space)
            made.append(space)
        command("ip", "link", "add", "shoal0", "netns", SPACES[0], "type", "veth", "peer", "name", "shoal0", "netns", SPACES[1])
        for space, address in zip(SPACES, ADDRESSES):
            command("ip", "-n", space, "address", "add", f"{address}/24", "dev", "shoal0")
            for link in ("lo", "shoal0"):
                command("ip", "-n", space, "link", "set", link, "up")
        yield
    finally:
        for space in made:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)


def inside(rank, *words):
    return ["ip", "netns", "exec", SPACES[rank], *words]


def ours():
    return comparison.run_ranks([inside(rank, comparison.ROOT / "build" / "release" / "bin" / "shoal", "bench", "collectives", "--nproc", 2, "--transport", "tcp", "--tls", "off",
                                        "--op", "all_reduce", "--bytes", f"4:{64 * MIB}", "--factor", 4, "--seconds", SECONDS, "--json", "--rendezvous",
                                        f"{ADDRESSES[0]}:{PORT}", "--rank", rank) for rank in range(2)])


def gloo():
    comparison.setup("torch")
    commands = [inside(rank, comparison.PYTHON, comparison.PEERS / "torch_collectives.py", "--ops", "all_reduce", "--max-mib", 64, "--seconds", SECONDS)
                for rank in range(2)]
    environments = [{"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": str(PORT + 40),
                     "GLOO_SOCKET_IFNAME": "shoal0"} for rank in range(2)]
    return comparison.run_ranks(commands, environments)


def main(cases):
    results = {"ours": {}, "peer": {}}
    try:
        with two_hosts():
            for side in comparison.alternating(1):
                for result in comparison.objects(ours() if side == "ours" else gloo()):
                    results[side].setdefault(result["bytes"], []).append(result["us_p50"])
    except comparison.Failed as failure:
        sys.exit(f"tcp: {failure}")
    for case in cases:
        sizes, limit = CASES[case]
        found = [(*comparison.compare([[t] for t in times], [[t] for t in results["peer"][size]]), size)
                 for size, times in results["ours"].items() if size in sizes and size in results["peer"]]
        us, them, ratio, spread, size = min(found, key=lambda one: one[2])
        comparison.emit(case, "us", us, them, ratio, spread, limit, bytes=size, p50=results)


if __name__ == "__main__":
    comparison.stop_cleanly()
    main(comparison.asked(CASES))
