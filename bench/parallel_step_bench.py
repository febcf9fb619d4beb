#!/usr/bin/env python3
"""Model-parallel training steps of GPT-2 124M, fp32, two ranks of one thread, beside PyTorch's over Gloo (bench/peers/torch_parallel.py).

Ranks divide one model and train on the same tokens. The losses of our two ranks are laid on those of one rank of ours from the same weights: they
must agree within 1e-4, relatively, or the case fails. Zero bubble is also measured beside our own 1F1B. bench/run.py says how this program is called.
"""
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import comparison  # noqa: E402
import train_step_bench as train_step  # noqa: E402

# tokens of a micro-batch: (timed steps a block, rounds of four blocks, limit)
SIZES = {64: (10, 2, None), 256: (6, 2, 1.7), 1024: (3, 1, None)}
MICRO_BATCHES = 4
# name: (our schedule, the peer's). The peer's head has a matrix of its own, so ours has one too. Its zero bubble has two stages a rank, as ZB-V has;
# ZB-H1 has one, and no peer of its own.
SCHEDULES = {"gpipe": ("gpipe", "GPipe"), "1f1b": ("1f1b", "1F1B"), "zero_bubble": ("zb-h1", "InterleavedZeroBubble"),
             "interleaved_zero_bubble": ("zb-v", "InterleavedZeroBubble")}
# name: (tokens, options of ours, micro-batches, mode of the peer, timed steps a block, rounds, limit)
CASES = {f"parallel_step/tp/gpt2-124m/fp32/{tokens}": (tokens, ["--tensor", 2], 1, ["--mode", "tp"], steps, rounds, limit)
         for tokens, (steps, rounds, limit) in SIZES.items()}
CASES |= {f"parallel_step/pp_{name}/gpt2-124m/fp32/128": (128, ["--pipeline", 2, "--untied", "--schedule", ours], MICRO_BATCHES,
                                                         ["--mode", "pp", "--schedule", theirs], 3, 1, 1.3)
          for name, (ours, theirs) in SCHEDULES.items()}
# Our schedules beside each other; a tuple: options of our own program in the peer's place.
CASES["parallel_step/pp_zero_bubble_over_1f1b/gpt2-124m/fp32/128"] = (
    128, ["--pipeline", 2, "--untied", "--schedule", "zb-h1"], MICRO_BATCHES, ("--pipeline", 2, "--untied", "--schedule", "1f1b"), 4, 2, 1.0)
WARMUP = 2


def measure(case):
    tokens, options, micro_batches, peer, steps, rounds, limit = CASES[case]
    comparison.setup("torch")
    inputs = comparison.ROOT / "build" / "peers" / f"gpt2-parallel-{tokens}"
    try:
        size = ["--seq", tokens, "--batch", 1]
        comparison.run_ranks([[comparison.PYTHON, comparison.PEERS / "gpt2_inputs.py", "--steps", (WARMUP + steps) * micro_batches, "--world", 1,
                               "--out", inputs, *size]])
        shared = [*size, "--steps", steps, "--warmup", WARMUP]
        given = [*shared, "--init", inputs / "init.f32", "--tokens", inputs / "tokens.i32", "--micro-batches", micro_batches]
        alone = [option for option in options if option == "--untied"]
        losses = comparison.objects(train_step.ours([*given, *alone], 1))[0]["losses"]
        times = {"ours": [], "peer": []}
        for side in comparison.alternating(rounds):
            if side == "ours" or isinstance(peer, tuple):
                result = comparison.objects(train_step.ours([*given, *(options if side == "ours" else peer)]))[0]
                train_step.check_losses(case, result["losses"], losses)
            else:
                peer_options = [*peer, *shared, "--microbatches", micro_batches]
                result = comparison.objects(comparison.torch_ranks("torch_parallel.py", peer_options, train_step.WORLD))[0]
            times[side].append(result["ms"])
        us, them, ratio, spread = comparison.compare(times["ours"], times["peer"])
        comparison.emit(case, "ms", us, them, ratio, spread, limit, blocks=times)
    finally:
        shutil.rmtree(inputs, ignore_errors=True)


if __name__ == "__main__":
    comparison.main(list(CASES), measure)
