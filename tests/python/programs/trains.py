"""Trains a small model by DDP, by FSDP2 and by tensor parallelism on Gloo. Prints losses and the median time of a step, as one JSON line."""
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
BATCH, WIDTH = 16, 256


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH))


times_ms = {}


def train(name, model, data_rank, data_ranks):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    losses, times = [], []
    for _ in range(STEPS):
        begin = time.perf_counter()
        x = torch.randn(BATCH, WIDTH, generator=generator)
        y = x.flip(-1)
        part = slice(data_rank * BATCH // data_ranks, (data_rank + 1) * BATCH // data_ranks)
        loss = ((model(x[part]) - y[part]) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
        times.append(time.perf_counter() - begin)
    times_ms[name] = 1000 * statistics.median(times[5:])
    return losses


dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (size,))
results = {"ddp": train("ddp", nn.parallel.DistributedDataParallel(make_model()), rank, size)}
sharded = make_model()
for layer in (sharded[0], sharded[2]):
    fully_shard(layer, mesh=mesh)
results["fsdp2"] = train("fsdp2", fully_shard(sharded, mesh=mesh), rank, size)
results["tensor parallel"] = train("tensor parallel", parallelize_module(make_model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}), 0, 1)
if rank == 0:
    print(json.dumps({**results, "ms": times_ms}))
dist.destroy_process_group()
