#!/usr/bin/env python3
"""What training takes of the memory of the host, in fp32 on two ranks: the peak of the sum of proportional set sizes over all processes, sampled ten
times a second from start to end.

fsdp: `shoal train` of GPT-2 124M with zero_stage = 3 beside PyTorch's FSDP2 (bench/peers/torch_gpt2.py), 64 tokens a rank; the ratio is the peer's
peak over ours. planned: bench/jobs/gpt2_1.5b.toml, which must run in 24 GB; ours is what it prints before it starts and peer what it took, and the
ratio is the smaller over the larger. bench/run.py says how this program is called.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import comparison  # noqa: E402
import host_memory  # noqa: E402

MB = 1e-6
FSDP, PLANNED = "train_memory/fsdp/gpt2-124m/fp32/64", "train_memory/planned/gpt2-1.5b/fp32/64"
JOB = """
[model]
name = "gpt2-124m"
[data]
source = "tokens"
folders = ["{folder}/data"]
prepare = "files"
prepare_from = ["docs"]
tokenizer = "byte"
[training]
global_batch_sequences = 2
sequence_length = 64
steps = 5
[parallelism]
ranks = 2
zero_stage = 3
threads_per_rank = 1
[checkpoint]
interval = 0
at_end = false
[validation]
interval = 0
batches = 1
"""


def ours(job, folder):
    """(peak of the host, what the run counted itself), from training `job` once."""
    program = comparison.ROOT / "build" / "release" / "bin" / "shoal"
    if not program.exists():
        raise comparison.Failed(f"{program} is not built")
    run = pathlib.Path(tempfile.mkdtemp(dir=folder))
    with host_memory.PeakMemory() as peak, (run / "said").open("w+") as said:
        process = subprocess.Popen([program, "train", job, "--run-dir", run / "run"], stdout=said, stderr=said, cwd=comparison.ROOT)
        try:
            peak.watch([process.pid])
            code = process.wait(timeout=900)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(timeout=60)
        said.seek(0)
        if code != 0:
            raise comparison.Failed(f"shoal train {job} exited with {code}:\n{said.read()[-3000:]}")
    return peak.bytes, json.loads((run / "run" / "memory.json").read_text())


def theirs():
    with host_memory.PeakMemory() as peak:
        comparison.torch_ranks("torch_gpt2.py", ["--mode", "fsdp2", "--seq", 64, "--batch", 1, "--steps", 3, "--warmup", 1], 2, started=peak.watch)
    return peak.bytes


def measure(case):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="shoal-memory-"))
    try:
        if case == PLANNED:
            took, counted = ours(comparison.ROOT / "bench" / "jobs" / "gpt2_1.5b.toml", folder)
            planned = counted["planned_bytes"]
            comparison.emit(case, "MB", MB * planned, MB * took, min(planned / took, took / planned), None, 0.95, tensors=MB * counted["peak_bytes"])
            return
        comparison.setup("torch")
        job = folder / "job.toml"
        job.write_text(JOB.format(folder=folder))
        blocks = {"ours": [], "peer": []}
        for side in comparison.alternating(1):
            blocks[side].append([MB * (ours(job, folder)[0] if side == "ours" else theirs())])
        comparison.emit(case, "MB", *comparison.compare(blocks["ours"], blocks["peer"]), 2.0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    comparison.main([FSDP, PLANNED], measure)
