#!/usr/bin/env python3
"""Data-parallel training steps of GPT-2 124M, fp32, two ranks of one thread, beside PyTorch's DDP over Gloo (bench/peers/torch_gpt2.py).

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
CASES = {f"train_step/ddp/gpt2-124m/fp32/{tokens}": tokens for tokens in SIZES}
WARMUP = 3


def ours(options):
    name = f"bench-{uuid.uuid4().hex}"
    program = comparison.ROOT / "build" / "release" / "bin" / "gpt2_ddp_step"
    if not program.exists():
        raise comparison.Failed(f"{program} is not built")
    return comparison.run_ranks([[program, "--name", name, "--rank", rank, "--world", WORLD, *options] for rank in range(WORLD)])


def check_losses(case, ours, peer):
    for step, (a, b) in enumerate(zip(ours, peer, strict=True)):
        if not abs(a - b) <= TOLERANCE * abs(b):
            raise comparison.Failed(f"{case}: the loss of step {step} is {a}, the peer's {b}")


def measure(case):
    tokens = CASES[case]
    steps, rounds, limit = SIZES[tokens]
    comparison.setup("torch")
    inputs = comparison.ROOT / "build" / "peers" / f"gpt2-{tokens}"
    try:
        shared = ["--seq", tokens, "--batch", 1]
        comparison.run_ranks([[comparison.PYTHON, comparison.PEERS / "gpt2_inputs.py", "--steps", WARMUP + steps, "--world", WORLD, "--out", inputs, *shared]])
        shared += ["--steps", steps, "--warmup", WARMUP, "--init", inputs / "init.f32", "--tokens", inputs / "tokens.i32"]
        times, losses = {"ours": [], "peer": []}, {}
        for side in comparison.alternating(rounds):
            printed = ours(shared) if side == "ours" else comparison.torch_ranks("torch_gpt2.py", ["--mode", "ddp", "--losses", *shared], WORLD)
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
