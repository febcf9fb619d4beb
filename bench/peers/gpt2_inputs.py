"""Weights and tokens that both sides of a training-step comparison start from, in the format of torch_gpt2.py --init and --tokens.

  python gpt2_inputs.py --size 124m --seq 64 --world 2 --steps 12 --out FOLDER    writes FOLDER/init.f32 and FOLDER/tokens.i32
"""
import argparse, pathlib
import torch
from torch_gpt2 import GPT, SIZES


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--size", choices=SIZES, default="124m")
    a.add_argument("--batch", type=int, default=1)
    a.add_argument("--seq", type=int, default=1024)
    a.add_argument("--world", type=int, default=2)
    a.add_argument("--steps", type=int, required=True, help="warm-up included")
    a.add_argument("--out", type=pathlib.Path, required=True)
    a = a.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    layers, heads, width, vocab = SIZES[a.size]
    model = GPT(layers, heads, width, vocab, a.seq)
    for p in model.parameters():  # norms and biases too, so that a mistake in any of them shows
        if p.dim() == 1:
            torch.nn.init.normal_(p, mean=1.0 if p.detach().eq(1).all() else 0.0, std=0.02)
    with open(a.out / "init.f32", "wb") as file:
        for p in model.parameters():
            p.detach().numpy().tofile(file)
    # Few different tokens, so that there is something to learn within the steps of a comparison.
    tokens = torch.randint(0, min(vocab, 1000), (a.steps, a.world, a.batch, a.seq + 1), dtype=torch.int32)
    tokens.numpy().tofile(a.out / "tokens.i32")


if __name__ == "__main__":
    main()
