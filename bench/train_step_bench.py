#!/usr/bin/env python3
"""Data-parallel training steps of GPT-2 124M, fp32, two ranks of one thread, beside PyTorch's DDP and FSDP2 over Gloo (bench/peers/torch_gpt2.py),
and sharded ones beside our own data parallelism.

Both start from the same weights and see the same tokens; every step is forward, backward, gradient reduction, clipping at 1.0 and AdamW on all
parameters. The losses of the timed steps are laid on each other: they must agree within 1e-4, relatively, or the case fails. bench/run.py says how
this program is called.
"""
import pathlib
import shutil
import sys
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import comparison  # noqa: E402

WORLD = 2
TOLERANCE = 1e-4
# tokens a rank: (timed steps a block, rounds of four blocks, limit)
SIZES = {64: (12, 2, 1.8), 256: (8, 2, None), 1024: (5, 2, 1.15)}
# name: (options of ours, mode of the peer or options of our own program in its place, {tokens: limit})
KINDS = {"ddp": ([], "ddp", {tokens: limit for tokens, (_, _, limit) in SIZES.items()}),
         "fsdp": (["--zero", 3], "fsdp2", {64: 4.0, 1024: 1.35}),
         "fsdp_over_ddp": (["--zero", 3], [], {64: 0.95, 1024: 0.95})}
CASES = {f"train_step/{kind}/gpt2-124m/fp32/{tokens}": (kind, tokens) for kind, (_, _, limits) in KINDS.items() for tokens in limits}
WARMUP = 3


def ours(options, world=WORLD):
    name = f"bench-{uuid.uuid4().hex}"
    program = comparison.ROOT / "build" / "release" / "bin" / "gpt2_ddp_step"
    if not program.exists():
        raise comparison.Failed(f"{program} is not built")
    return comparison.run_ranks([[program, "--name", name, "--rank", rank, "--world", world, *options] for rank in range(world)])


def check_losses(case, ours, peer):
    for step, (a, b) in enumerate(zip(ours, peer, strict=True)):
        if not abs(a - b) <= TOLERANCE * abs(b):
            raise comparison.Failed(f"{case}: the loss of step {step} is {a}, the peer's {b}")


def measure(case):
    kind, tokens = CASES[case]
    options, peer, limits = KINDS[kind]
    steps, rounds, _ = SIZES[tokens]
    limit = limits[tokens]
    comparison.setup("torch")
    inputs = comparison.ROOT / "build" / "peers" / f"gpt2-{tokens}"
    try:
        shared = ["--seq", tokens, "--batch", 1]
        comparison.run_ranks([[comparison.PYTHON, comparison.PEERS / "gpt2_inputs.py", "--steps", WARMUP + steps, "--world", WORLD, "--out", inputs, *shared]])
        shared += ["--steps", steps, "--warmup", WARMUP, "--init", inputs / "init.f32", "--tokens", inputs / "tokens.i32"]
        times, losses = {"ours": [], "peer": []}, {}
        for side in comparison.alternating(rounds):
            if side == "ours" or isinstance(peer, list):
                printed = ours([*shared, *(options if side == "ours" else peer)])
            else:
                printed = comparison.torch_ranks("torch_gpt2.py", ["--mode", peer, "--losses", *shared], WORLD)
            result = comparison.objects(printed)[0]
            times[side].append(result["ms"])
            losses[side] = result["losses"]
            if len(losses) == 2:
                check_losses(case, losses["ours"], losses["peer"])
        us, them, ratio, spread = comparison.compare(times["ours"], times["peer"])
        difference = max(abs(a - b) / abs(b) for a, b in zip(losses["ours"], losses["peer"]))
        comparison.emit(case, "ms", us, them, ratio, spread, limit, loss_difference=difference, blocks=times)
    finally:
        shutil.rmtree(inputs, ignore_errors=True)


if __name__ == "__main__":
    comparison.main(list(CASES), measure)
