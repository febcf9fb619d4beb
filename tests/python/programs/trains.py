"""Trains a small model by DDP, by FSDP2 and by tensor parallelism on Gloo. Prints losses and the median time of a step, as one JSON line. With the
arguments STEPS, one of the three and "kill" or "raise" it trains by that one again, until rank 1 ends so."""
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from step_watch import StepWatch, steps
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS = steps(20)
BATCH, WIDTH = 16, 256


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH))


watch = StepWatch()
times_ms = {}


def train(name, model, data_rank, data_ranks):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    losses, times = [], []
    for _ in range(STEPS):
        watch.begin()
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


def by_ddp():
    return nn.parallel.DistributedDataParallel(make_model()), rank, size


def by_fsdp2():
    model = make_model()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh), rank, size


def by_tensor_parallelism():
    return parallelize_module(make_model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}), 0, 1


WAYS = {"ddp": by_ddp, "fsdp2": by_fsdp2, "tensor parallel": by_tensor_parallelism}
results = {name: train(name, *way()) for name, way in WAYS.items()}
if rank == 0:
    print(json.dumps({**results, "ms": times_ms}))
if watch.trains_again():
    train(sys.argv[2], *WAYS[sys.argv[2]]())
dist.destroy_process_group()
