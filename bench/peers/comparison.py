"""What every comparison with a peer needs: alternating blocks, ratios of medians, ranks that are pinned alike.

Blocks of the two sides alternate A B B A, so that a machine that slows down slows both. `ratio` is the peer's median over ours: how many times
faster we are. `spread` is the range of that ratio over pairs of neighbouring blocks, as a part of it.
"""
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = pathlib.Path(__file__).resolve().parent
PYTHON = ROOT / ".venv-peers" / "bin" / "python"


class Failed(Exception):
    """A case that could not be measured; its words are for people."""


def setup(*peers):
    """The peers named, brought by tools/setup_peers.sh when they are not there."""
    done = subprocess.run([ROOT / "tools" / "setup_peers.sh", *peers], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"no {' and '.join(peers)} to compare with: {done.stderr.strip()}")


def pinned(rank):
    """For Popen: keeps a rank to a core of its own, as long as there are enough, and to one thread."""
    cores = sorted(os.sched_getaffinity(0))
    return {"preexec_fn": lambda: os.sched_setaffinity(0, {cores[rank % len(cores)]})}


def run_ranks(commands, environments=None, timeout=900, started=None):
    """Starts one process a rank, pinned alike, one thread each; returns what rank 0 printed. When one fails, the others are stopped. `started` is
    called with their process numbers."""
    processes, words = [], []
    for rank, command in enumerate(commands):
        words.append(tempfile.TemporaryFile("w+"))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(environments[rank] if environments else {})}
        processes.append(subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                                          stderr=words[-1], text=True, env=environment, cwd=ROOT, start_new_session=True, **pinned(rank)))
    try:
        if started:
            started([process.pid for process in processes])
        printed, _ = processes[0].communicate(timeout=timeout)
        codes = [process.wait(timeout=60) for process in processes]
    except subprocess.TimeoutExpired:
        raise Failed(f"{commands[0][0]} did not end within its time") from None
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if any(codes):
        rank = next(rank for rank, code in enumerate(codes) if code)
        words[rank].seek(0)
        raise Failed(f"rank {rank} of {' '.join(map(str, commands[rank]))} exited with {codes[rank]}:\n{words[rank].read()[-3000:]}")
    return printed


def torch_ranks(script, options, world=2, port=29641, started=None, environment=None):
    """Runs a PyTorch script as torchrun would, one pinned process a rank, with `environment` added; returns what rank 0 printed. `started` as for
    run_ranks."""
    commands = [[PYTHON, PEERS / script, *options]] * world
    shared = {**(environment or {}), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return run_ranks(commands, [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)], started=started)


def objects(text):
    """The JSON objects among the lines of a program's output."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def alternating(rounds):
    """The order of blocks: ours, peer, peer, ours, and so on."""
    return [side for _ in range(rounds) for side in ("ours", "peer", "peer", "ours")]


def compare(ours, peer):
    """(median of ours, median of the peer, ratio, spread) of lists of blocks, each a list of times, in the order in which they ran."""
    flat = [statistics.median([time for block in blocks for time in block]) for blocks in (ours, peer)]
    pairs = [statistics.median(p) / statistics.median(o) for o, p in zip(ours, peer)]
    ratio = flat[1] / flat[0]
    return flat[0], flat[1], ratio, (max(pairs) - min(pairs)) / ratio


def emit(case, unit, ours, peer=None, ratio=None, spread=None, limit=None, **more):
    print(json.dumps({"case": case, "unit": unit, "ours": ours, "peer": peer, "ratio": ratio, "spread": spread, "limit": limit, **more}), flush=True)


def stop_cleanly():
    """A SIGTERM leaves by way of `finally`, so that no rank stays behind."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def asked(cases):
    """The cases that the command line names, all without names; with --list prints their names and leaves. The protocol of bench/run.py."""
    if sys.argv[1:] == ["--list"]:
        print("\n".join(cases))
        sys.exit(0)
    unknown = [case for case in sys.argv[1:] if case not in cases]
    if unknown:
        sys.exit(f"no case {unknown[0]}")
    return sys.argv[1:] or list(cases)


def main(cases, measure):
    """Measures the cases that are asked for; exits with 1 when one could not be."""
    failed = False
    chosen = asked(cases)
    stop_cleanly()
    for case in chosen:
        try:
            measure(case)
        except Failed as failure:
            failed = True
            print(f"{case}: {failure}", file=sys.stderr)
    sys.exit(1 if failed else 0)
