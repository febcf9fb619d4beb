#!/usr/bin/env python3
"""What the planner says of Shoal's own training steps, beside what they are: peak memory and time of GPT-2 in three sizes and two lengths, on one rank,
with two replicas (DDP) and with two shards (FSDP), in fp32; of the longer one in bf16 too, and of one size with shards of the optimizer's state and of
gradients (ZeRO-1 and 2); and on four ranks, two replicas of two shards (HSDP). Of two sizes with two ranks that divide the model: tensor parallelism,
four schedules of a pipeline, both ways of context parallelism, and experts of a mixture; and products of tensor parallelism with replicas and with a
pipeline on four ranks.

`shoal plan calibrate` measures the machine with as many ranks as a job has, `shoal plan check` then trains a few steps of it, three times. A core and
a memory that others use too are slower for seconds or minutes: before and after the steps `check` measures by a few kernels how the machine has
changed since it was calibrated, and plans for the machine as it then is (planned_now_step_s). What other processes have disturbed is measured again.
ours is what was planned and peer what was measured, of the round with the median error; the ratio is the smaller over the larger, so that 0.95 is an
error of 5 %. bench/run.py says how this program is called.
"""
import collections
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import comparison  # noqa: E402

SIZES = {"10m": {"layers": 4, "hidden": 384, "heads": 6, "vocab": 8192}, "50m": {"layers": 8, "hidden": 512, "heads": 8, "vocab": 50257}, "124m": {}}
MIXTURES = {"10m": {"layers": 4, "hidden": 256, "heads": 4, "kv_heads": 2, "head_size": 64, "ffn": 512, "vocab": 4096, "experts": 4},
            "50m": {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 4, "head_size": 64, "ffn": 1024, "vocab": 8192, "experts": 8}}
TP, CP, EP = {"tensor_parallel_degree": 2}, {"context_parallel_degree": 2}, {"expert_parallel_degree": 2}


def pipeline(schedule, **more):
    return {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": f'"{schedule}"', **more}


# `axes`: further keys of [parallelism]; `copies`: ranks of the data axis; `micro_batches`: of one sample, on each of them
Kind = collections.namedtuple("Kind", "ranks zero replicas type axes copies micro_batches", defaults=(1, 0, 1, "fp32", {}, None, 1))
KINDS = {"one": Kind(), "ddp": Kind(2), "fsdp": Kind(2, 3), "zero1": Kind(2, 1), "zero2": Kind(2, 2), "hsdp": Kind(4, 3, 2),
         "one-bf16": Kind(type="bf16"), "ddp-bf16": Kind(2, type="bf16"), "fsdp-bf16": Kind(2, 3, type="bf16")}
# jobs that divide a model, and the length of their sequences
DIVIDED = {"tp": (Kind(2, axes=TP, copies=1), 256), "ep": (Kind(2, axes=EP), 256),
           "cp-ring": (Kind(2, axes=CP, copies=1), 512), "cp-heads": (Kind(2, axes=CP | {"context_parallel_method": '"heads"'}, copies=1), 512),
           "dp-tp": (Kind(4, axes=TP, copies=2), 128), "pp-tp": (Kind(4, axes=TP | pipeline("1f1b"), copies=1, micro_batches=4), 128)}
for name, virtual in {"gpipe": {}, "1f1b": {}, "zb-h1": {}, "interleaved": {"pipeline_parallel_virtual_stages": 2}}.items():
    DIVIDED[f"pp-{name}"] = (Kind(2, axes=pipeline(name, **virtual), copies=1, micro_batches=4), 128)
KINDS |= {name: kind for name, (kind, _) in DIVIDED.items()}
LENGTHS = (64, 256)
STEPS = {"10m": 100, "50m": 16, "124m": 10}
ROUNDS, SERVES_S, TRIES = 3, 600, 3
DISTURBING = 0.1  # cores that other processes keep busy
LIMITS = {"memory": 0.95, "time": 0.9}
JOBS = [(kind, size, length) for size in SIZES for length in LENGTHS for kind in ("one", "ddp", "fsdp")]
JOBS += [(kind, "50m", 256) for kind in ("zero1", "zero2")]
JOBS += [("hsdp", size, 64) for size in SIZES]
JOBS += [(kind, size, 256) for size in SIZES for kind in ("one-bf16", "ddp-bf16", "fsdp-bf16")]
JOBS += [(kind, size, length) for kind, (_, length) in DIVIDED.items() for size in MIXTURES]
CASES = [f"plan/prediction/{kind}/{'moe' if kind == 'ep' else 'gpt2'}-{size}/{length}/{what}" for kind, size, length in JOBS for what in LIMITS]
JOB = """
[model]
{model}
[data]
source = "tokens"
folders = ["{data}"]
prepare = "files"
prepare_from = ["{text}"]
tokenizer = "byte"
[training]
global_batch_sequences = {samples}
micro_batch = {micro_batch}
sequence_length = {length}
steps = 10
[parallelism]
ranks = {ranks}
zero_stage = {zero}
{axes}
[precision]
type = "{type}"
"""


class Planner:
    """The program, with what it measured of this machine."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shoal-plan-"))
        # What the jobs train on stays as it is, whoever writes documentation meanwhile.
        self.text = shutil.copytree(comparison.ROOT / "docs", self.folder / "text")
        self.clusters, self.checked = {}, {}

    def run(self, *words):
        program = comparison.ROOT / "build" / "release" / "bin" / "shoal"
        if not program.exists():
            raise comparison.Failed(f"{program} is not built")
        done = subprocess.run([program, "plan", *map(str, words)], capture_output=True, text=True, cwd=self.folder)
        if done.returncode != 0:
            raise comparison.Failed(f"shoal plan {words[0]}: {done.stdout}{done.stderr}")
        return done.stdout

    def cluster(self, ranks, bf16):
        file = self.folder / f"cluster-{ranks}-{bf16}.toml"
        if file not in self.clusters or time.monotonic() - self.clusters[file] > SERVES_S:
            words = ("calibrate", "--nproc", ranks, "--output", file, *(() if bf16 else ("--no-bf16",)))
            for _ in range(TRIES):
                if "Other processes" not in self.run(*words):
                    break
            self.clusters[file] = time.monotonic()
        return file

    def undisturbed(self, *words):
        tries = []
        while len(tries) < TRIES and (not tries or tries[-1]["others_cores"] > DISTURBING):
            tries.append(json.loads(self.run(*words)))
        return min(tries, key=lambda one: one["others_cores"])

    def check(self, kind, size, length):
        if (kind, size, length) not in self.checked:
            mesh = KINDS[kind]
            mixture = "expert_parallel_degree" in mesh.axes
            keys = {"name": '"moe-tiny"', "sequence": 1024, **MIXTURES[size]} if mixture else {"name": '"gpt2-124m"', **SIZES[size]}
            copies = mesh.copies or max(2, mesh.ranks)
            axes = {"data_parallel_replicate_degree": mesh.replicas} if mesh.replicas > 1 else mesh.axes
            model, parallelism = ("\n".join(f"{key} = {value}" for key, value in table.items()) for table in (keys, axes))
            job = self.folder / "job.toml"
            job.write_text(JOB.format(model=model, data=self.folder / "data", text=self.text, length=length, samples=copies * mesh.micro_batches,
                                      micro_batch=1 if kind in DIVIDED else 0, ranks=mesh.ranks, zero=mesh.zero, axes=parallelism, type=mesh.type))
            words = ("check", job, "--steps", STEPS[size], "--json", "--cluster")
            self.checked[kind, size, length] = [self.undisturbed(*words, self.cluster(mesh.ranks, mesh.type == "bf16")) for _ in range(ROUNDS)]
        return self.checked[kind, size, length]


planner = Planner()


def measure(case):
    _, _, kind, model, length, what = case.split("/")
    found = planner.check(kind, model.partition("-")[2], int(length))
    names, factor, unit = (("peak_bytes", 1e-6, "MB") if what == "memory" else ("step_s", 1e3, "ms"))
    planned = f"planned_now_{names}" if what == "time" else f"planned_{names}"
    # A plan belongs to the round that it was made for: the round with the median error.
    rounds = sorted(((factor * one[planned], factor * one[f"measured_{names}"]) for one in found), key=lambda pair: pair[0] / pair[1])
    ours, peer = rounds[len(rounds) // 2]
    measured = [pair[1] for pair in rounds]
    comparison.emit(case, unit, ours, peer, min(ours / peer, peer / ours), (max(measured) - min(measured)) / peer, LIMITS[what])


if __name__ == "__main__":
    try:
        comparison.main(CASES, measure)
    finally:
        shutil.rmtree(planner.folder, ignore_errors=True)
