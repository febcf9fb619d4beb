#!/usr/bin/env python3
"""Data-parallel training steps of GPT-2 124M, fp32, two ranks of one thread, beside PyTorch's DDP and FSDP2 over Gloo (bench/peers/torch_gpt2.py),
and sharded ones beside our own data parallelism.

Both start from the same weights and see the same tokens; every step is forward, backward, gradient reduction, clipping at 1.0 and AdamW on all
parameters. The peer runs with what makes it fastest here: see CHANGES. The losses of the timed steps are laid on each other: they must agree within 1e-4, relatively, or the case fails. bench/run.py says how
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


# name: (options of the script, environment). malloc that keeps pages makes no page faults in the second step.
CHANGES = {"malloc keeps pages": ([], {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(256 << 20)}),
           "gradients set to none": (["--set-to-none", "yes"], {}),
           "gradients set to zero": (["--set-to-none", "no"], {}),
           "torch.compile": (["--compile"], {})}


def best_setting(mode, options):
    """The changes with which three steps of the peer are fastest, one after the other: each is kept where it helps. (names, options, environment)"""
    def median_ms(names):
        words = [word for name in names for word in CHANGES[name][0]]
        environment = {key: value for name in names for key, value in CHANGES[name][1].items()}
        printed = comparison.torch_ranks("torch_gpt2.py", ["--mode", mode, *options, "--steps", 3, *words], WORLD, environment=environment)
        return comparison.objects(printed)[0]["ms_median"]

    chosen, best = [], median_ms([])
    for name in CHANGES:
        try:
            ms = median_ms([*chosen, name])
        except comparison.Failed as failure:
            print(f"the peer cannot run with {name}: {str(failure)[-500:]}", file=sys.stderr)
            continue
        if ms < best:
            chosen, best = [*chosen, name], ms
    words = [word for name in chosen for word in CHANGES[name][0]]
    return chosen, words, {key: value for name in chosen for key, value in CHANGES[name][1].items()}


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
        shared += ["--warmup", WARMUP, "--init", inputs / "init.f32", "--tokens", inputs / "tokens.i32"]
        chosen, words, environment = ([], [], {}) if isinstance(peer, list) else best_setting(peer, shared)
        shared += ["--steps", steps]
        times, losses = {"ours": [], "peer": []}, {}
        for side in comparison.alternating(rounds):
            if side == "ours" or isinstance(peer, list):
                printed = ours([*shared, *(options if side == "ours" else peer)])
            else:
                printed = comparison.torch_ranks("torch_gpt2.py", ["--mode", peer, "--losses", *shared, *words], WORLD, environment=environment)
            result = comparison.objects(printed)[0]
            times[side].append(result["ms"])
            losses[side] = result["losses"]
            if len(losses) == 2:
                check_losses(case, losses["ours"], losses["peer"])
        us, them, ratio, spread = comparison.compare(times["ours"], times["peer"])
        difference = max(abs(a - b) / abs(b) for a, b in zip(losses["ours"], losses["peer"]))
        comparison.emit(case, "ms", us, them, ratio, spread, limit, loss_difference=difference, peer_setting=chosen, blocks=times)
    finally:
        shutil.rmtree(inputs, ignore_errors=True)


if __name__ == "__main__":
    comparison.main(list(CASES), measure)
