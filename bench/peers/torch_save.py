"""How long torch.save takes for GPT-2 124M with AdamW's moments in fp32, written and waited for as training scripts do. Prints one JSON line."""
import argparse, json, os, time
import torch
from torch_gpt2 import GPT, SIZES

a = argparse.ArgumentParser()
a.add_argument("--file", required=True)
a.add_argument("--times", type=int, default=3)
a.add_argument("--size", choices=SIZES, default="124m")
a.add_argument("--seq", type=int, default=1024)
a = a.parse_args()
model = GPT(*SIZES[a.size], a.seq)
opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for p in model.parameters():
    p.grad = torch.ones_like(p)
opt.step()
opt.zero_grad()
state = {"model": model.state_dict(), "optimizer": opt.state_dict()}
times = []
for _ in range(a.times):
    start = time.perf_counter()
    torch.save(state, a.file)
    times.append((time.perf_counter() - start) * 1e3)
    bytes = os.path.getsize(a.file)
    os.unlink(a.file)
print(json.dumps({"peer": "torch " + torch.__version__, "bytes": bytes, "ms": times}))
