#!/usr/bin/env python3
"""Saving GPT-2 124M with Adam's moments behind training, fp32, two data-parallel ranks of one thread, 1,024 tokens a rank.

blocked: how long a save holds training up, beside a torch.save of the same state (bench/peers/torch_save.py), which training waits for.
slowdown: steps while a save is being written, beside the steps before it in the same run.
disk: a save with nothing else to do, beside plain direct writes of as many bytes by as many ranks in the same run, MB/s.
All three come from one run of bench/checkpoint/gpt2_save.cpp. bench/run.py says how this program is called.
"""
import functools
import pathlib
import shutil
import statistics
import sys
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import comparison  # noqa: E402

WORLD = 2
CASES = [f"checkpoint/{what}/gpt2-124m/fp32/1024" for what in ("blocked", "slowdown", "disk")]
DIRECTORY = comparison.ROOT / "build" / "peers" / "checkpoints"


@functools.cache
def ours():
    program = comparison.ROOT / "build" / "release" / "bin" / "gpt2_save"
    if not program.exists():
        raise comparison.Failed(f"{program} is not built")
    name = f"bench-{uuid.uuid4().hex}"
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    try:
        printed = comparison.run_ranks([[program, "--name", name, "--rank", rank, "--world", WORLD, "--directory", DIRECTORY] for rank in range(WORLD)])
    finally:
        shutil.rmtree(DIRECTORY, ignore_errors=True)
    return comparison.objects(printed)[0]


def torch_save():
    """Milliseconds of a few saves of as much state as ours."""
    comparison.setup("torch")
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    try:
        words = comparison.run_ranks([[comparison.PYTHON, comparison.PEERS / "torch_save.py", "--file", DIRECTORY / "state.pt"]])
    finally:
        shutil.rmtree(DIRECTORY, ignore_errors=True)
    return comparison.objects(words)[0]


def spread(values):
    return (max(values) - min(values)) / statistics.median(values)


def measure(case):
    run, what = ours(), case.split("/")[1]
    if what == "blocked":
        peer = torch_save()
        if abs(peer["bytes"] / run["bytes"] - 1) > 0.02:
            raise comparison.Failed(f"{case}: {run['bytes']} bytes were saved, by the peer {peer['bytes']}")
        us, them = statistics.median(run["held_up_ms"]), statistics.median(peer["ms"])
        comparison.emit(case, "ms", us, them, them / us, spread(run["held_up_ms"]), 20, blocks=[run["held_up_ms"], peer["ms"]], took_ms=run["took_ms"])
    elif what == "slowdown":
        us, them = statistics.median(run["saving_ms"]), statistics.median(run["alone_ms"])
        comparison.emit(case, "ms", us, them, them / us, spread(run["alone_ms"]), 0.909, blocks=[run["saving_ms"], run["alone_ms"]])
    else:
        us, them = statistics.median(run["idle_mb_per_s"]), statistics.median(run["disk_mb_per_s"])
        comparison.emit(case, "MB/s", us, them, us / them, spread(run["disk_mb_per_s"]), 0.8, blocks=[run["idle_mb_per_s"], run["disk_mb_per_s"]])


if __name__ == "__main__":
    comparison.main(CASES, measure)
