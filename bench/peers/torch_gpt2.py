"""PyTorch reference trainer: the peer that every training-step figure is compared with.

GPT-2 architecture (pre-LN, learned positions, tanh GELU, tied head), AdamW(fused), global-norm clip 1.0.
Run under torchrun, e.g. two CPU ranks with one thread each:
  OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 torch_gpt2.py --mode ddp --batch 1 --seq 1024
Prints one JSON line from rank 0: milliseconds per step (min, median and all), tokens/s, peak RSS in MiB of rank 0,
sum over ranks of the proportional set size after the last step (gradients freed or kept as the mode does), last loss.
"""
import argparse, importlib, json, os, resource, statistics, time
import torch, torch.distributed as dist, torch.nn as nn, torch.nn.functional as F

SIZES = {"tiny": (4, 4, 128, 256), "30m": (6, 6, 384, 50304), "124m": (12, 12, 768, 50304), "350m": (24, 16, 1024, 50304)}


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers, heads, width, vocab, seq):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(seq, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.wte.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, idx, target):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), target.reshape(-1))


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--mode", choices=["single", "ddp", "fsdp2", "fsdp2-zero2"], default="ddp")
    a.add_argument("--size", choices=SIZES, default="124m")
    a.add_argument("--batch", type=int, default=1)
    a.add_argument("--seq", type=int, default=1024)
    a.add_argument("--steps", type=int, default=8)
    a.add_argument("--warmup", type=int, default=2)
    a.add_argument("--accum", type=int, default=1)
    a.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="bf16: autocast (ddp) or MixedPrecisionPolicy (fsdp2)")
    a.add_argument("--compile", action="store_true")
    a.add_argument("--set-to-none", choices=("yes", "no"), help="what zero_grad does with gradients; default: no for ddp, whose buckets hold them")
    a.add_argument("--device", default="cpu")
    a.add_argument("--init", help="file of float32: every parameter in named_parameters() order, to start from given weights")
    a.add_argument("--tokens", help="file of int32: step by step, rank by rank, micro-batch by micro-batch, batch x (seq + 1) tokens")
    a.add_argument("--losses", action="store_true", help="also print the mean loss over ranks of every step")
    a.add_argument("--backend", help="c10d backend; default gloo on CPU, nccl on CUDA")
    a.add_argument("--import-module", help="module that registers the backend, imported first")
    a = a.parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    dev = torch.device(a.device)
    if a.import_module:
        importlib.import_module(a.import_module)
    if world > 1:
        dist.init_process_group(a.backend or ("gloo" if dev.type == "cpu" else "nccl"))
    torch.manual_seed(0)
    layers, heads, width, vocab = SIZES[a.size]
    model = GPT(layers, heads, width, vocab, a.seq)
    if a.init:
        flat, at = torch.from_file(a.init, size=sum(p.numel() for p in model.parameters())), 0
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(flat[at:at + p.numel()].view_as(p))
                at += p.numel()
    model = model.to(dev)
    if a.mode == "ddp":
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=a.accum == 1)
    elif a.mode.startswith("fsdp2"):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        mp = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if a.dtype == "bf16" else MixedPrecisionPolicy()
        mesh = dist.device_mesh.init_device_mesh(dev.type, (world,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=mp, reshard_after_forward=a.mode == "fsdp2")
        fully_shard(model, mesh=mesh, mp_policy=mp, reshard_after_forward=a.mode == "fsdp2")
    if a.compile:
        model = torch.compile(model)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    g = torch.Generator().manual_seed(rank)
    per_step = world * a.accum * a.batch * (a.seq + 1)
    given = a.tokens and torch.from_file(a.tokens, size=per_step * (a.warmup + a.steps), dtype=torch.int32).view(-1, world, a.accum, a.batch, a.seq + 1)
    times, losses, loss = [], [], None
    for step in range(a.warmup + a.steps):
        data = given[step, rank].long() if a.tokens else torch.randint(0, vocab, (a.accum, a.batch, a.seq + 1), generator=g)
        data, step_loss = data.to(dev), torch.zeros((), device=dev)
        if world > 1:
            dist.barrier()
        start = time.perf_counter()
        for micro in range(a.accum):
            with torch.autocast(dev.type, torch.bfloat16, enabled=a.dtype == "bf16" and not a.mode.startswith("fsdp2")):
                loss = model(data[micro, :, :-1], data[micro, :, 1:]) / a.accum
            loss.backward()
            step_loss += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=a.mode != "ddp" if a.set_to_none is None else a.set_to_none == "yes")
        if dev.type == "cuda":
            torch.cuda.synchronize()
        if step >= a.warmup:
            times.append(time.perf_counter() - start)
        if a.losses:
            if world > 1:
                dist.all_reduce(step_loss)
            losses.append(float(step_loss) / world)
    pss = torch.tensor([float(next(l for l in open("/proc/self/smaps_rollup") if l.startswith("Pss:")).split()[1]) / 1024])
    if world > 1 and dev.type == "cpu":
        dist.all_reduce(pss)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    if rank == 0:
        tokens = a.batch * a.seq * a.accum * world
        med = statistics.median(times)
        print(json.dumps({"peer": "torch " + torch.__version__, "mode": a.mode, "backend": a.backend, "size": a.size, "dtype": a.dtype, "compile": a.compile,
                          "world": world, "batch": a.batch, "seq": a.seq, "accum": a.accum, "ms_min": round(min(times) * 1e3, 2),
                          "ms_median": round(med * 1e3, 2), "tokens_per_s": round(tokens / med, 1), "peak_rss_mib": rss,
                          "host_pss_mib": round(float(pss)), "ms": [round(t * 1e3, 3) for t in times], "losses": losses if a.losses else None,
                          "loss": round(float(loss.detach()) * a.accum, 4)}), flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
