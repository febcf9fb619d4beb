#!/usr/bin/env python3
"""Model-parallel training steps of GPT-2 124M, fp32, two ranks of one thread, beside PyTorch's over Gloo (bench/peers/torch_parallel.py).

Ranks divide one model and train on the same tokens. The losses of our two ranks are laid on those of one rank of ours from the same weights:
they must agree within 1e-4, relatively, or the case fails. bench/run.py says how this program is called.
"""
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import comparison  # noqa: E402
import train_step_bench as train_step  # noqa: E402

# tokens: (timed steps a block, rounds of four blocks, limit)
SIZES = {64: (10, 2, None), 256: (6, 2, 1.7), 1024: (3, 1, None)}
CASES = {f"parallel_step/tp/gpt2-124m/fp32/{tokens}": tokens for tokens in SIZES}
WARMUP = 2


def measure(case):
    tokens = CASES[case]
    steps, rounds, limit = SIZES[tokens]
    comparison.setup("torch")
    inputs = comparison.ROOT / "build" / "peers" / f"gpt2-tp-{tokens}"
    try:
        size = ["--seq", tokens, "--batch", 1]
        comparison.run_ranks([[comparison.PYTHON, comparison.PEERS / "gpt2_inputs.py", "--steps", WARMUP + steps, "--world", 1, "--out", inputs, *size]])
        shared = [*size, "--steps", steps, "--warmup", WARMUP]
        given = ["--init", inputs / "init.f32", "--tokens", inputs / "tokens.i32"]
        alone = comparison.objects(train_step.ours([*shared, *given], 1))[0]["losses"]
        times = {"ours": [], "peer": []}
        for side in comparison.alternating(rounds):
            if side == "ours":
                result = comparison.objects(train_step.ours([*shared, *given, "--tensor", 2]))[0]
                train_step.check_losses(case, result["losses"], alone)
                times[side].append(result["ms"])
            else:
                printed = comparison.torch_ranks("torch_parallel.py", ["--mode", "tp", *shared], train_step.WORLD)
                times[side].append(comparison.objects(printed)[0]["ms"])
        us, them, ratio, spread = comparison.compare(times["ours"], times["peer"])
        comparison.emit(case, "ms", us, them, ratio, spread, limit, blocks=times)
    finally:
        shutil.rmtree(inputs, ignore_errors=True)


if __name__ == "__main__":
    comparison.main(list(CASES), measure)
