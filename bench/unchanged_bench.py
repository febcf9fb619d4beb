#!/usr/bin/env python3
"""Training steps of PyTorch programs that ask for Gloo (tests/python/programs), two ranks of one thread, on Shoal (`python -m shoal.run`) and as they
are (`--keep-gloo`).

The models are small, so that collectives are a large part of a step: 0.5 million parameters, or 0.4 of the Trainer's GPT-2. The losses of the two
sides are laid on each other: they must agree within 1e-5, or the case fails. bench/run.py says how this program is called.
"""
import json
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import comparison  # noqa: E402

PROGRAMS = comparison.ROOT / "tests" / "python" / "programs"
STEPS, ROUNDS, TOLERANCE = 200, 2, 1e-5
GLOO_ABORTS = "terminate called without an active exception"  # about one run of Gloo in fifteen, at its end (docs/pytorch.md)
# case: (program, what of its results)
CASES = {"unchanged/ddp": ("trains.py", "ddp"), "unchanged/fsdp2": ("trains.py", "fsdp2"), "unchanged/tensor_parallel": ("trains.py", "tensor parallel"),
         "unchanged/accelerate": ("with_accelerate.py", None), "unchanged/trainer": ("with_trainer.py", None),
         "unchanged/lightning": ("with_lightning.py", None)}


def run(program, *options):
    """What rank 0 of the program printed."""
    python = comparison.ROOT / ".venv-python" / "bin" / "python"
    site = comparison.ROOT / "build" / "release" / "python"
    words = [python, "-m", "shoal.run", "--nproc", 2, *options, PROGRAMS / program, STEPS]
    for _ in range(4):
        done = subprocess.run(list(map(str, words)), env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(site)}, capture_output=True, text=True,
                              timeout=600)
        if GLOO_ABORTS not in done.stdout + done.stderr:
            break
    found = re.search(r'^\[0\] (\{".*\})$', done.stdout, re.M)
    if done.returncode or not found:
        raise comparison.Failed(f"{' '.join(map(str, words))} exited with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    if ("run on shoal" in done.stderr) == bool(options):
        raise comparison.Failed(f"{program} ran on the wrong backend:\n{done.stderr[-3000:]}")
    return json.loads(found[1])


def results_of(found, name):
    """(losses, ms)"""
    return (found[name], found["ms"][name]) if name else (found["losses"], found["ms"])


def measure(case):
    program, name = CASES[case]
    setup = subprocess.run([comparison.ROOT / "tools" / "setup_python.sh"], capture_output=True, text=True)
    if setup.returncode:
        raise comparison.Failed(f"no Python to run it in: {setup.stderr.strip()}")
    losses, times = {}, {"ours": [], "peer": []}
    for side in comparison.alternating(ROUNDS):
        losses[side], ms = results_of(run(program, *([] if side == "ours" else ["--keep-gloo"])), name)
        times[side].append([ms])
    apart = max(abs(a - b) for a, b in zip(losses["ours"], losses["peer"], strict=True))
    if not apart <= TOLERANCE:
        raise comparison.Failed(f"{case}: the losses of a step differ by {apart}")
    comparison.emit(case, "ms", *comparison.compare(times["ours"], times["peer"]), 1.0, apart=apart)


if __name__ == "__main__":
    comparison.main(list(CASES), measure)
