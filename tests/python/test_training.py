"""DDP, FSDP2 and tensor parallelism train as one process does."""
import unittest

import torch
import torch.distributed as dist
import torch.nn as nn
from ranks import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS, BATCH, WIDTH = 5, 8, 48


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH))


def batches():
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)) for _ in range(STEPS)]


def train(model, part):
    """Loss of every step; `part` is this rank's slice of the batch."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for x, y in batches():
        loss = ((model(x[part]) - y[part]) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def reference():
    model = make_model()
    return train(model, slice(None)), [p.detach() for p in model.parameters()]


def slice_of(rank, size):
    return slice(rank * BATCH // size, (rank + 1) * BATCH // size)


def compare(losses, parameters):
    """Sums in another order differ in the last bits, and five steps of AdamW let that grow: 1e-4 is far from any wrong factor."""
    want_losses, want = reference()
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    torch.testing.assert_close(losses, want_losses, rtol=1e-4, atol=1e-4)
    for got, one in zip(parameters, want):
        torch.testing.assert_close(got.full_tensor() if isinstance(got, DTensor) else got.detach(), one, rtol=1e-3, atol=1e-4)


def data_parallel(rank, size, **options):
    model = nn.parallel.DistributedDataParallel(make_model(), bucket_cap_mb=0.02, **options)
    losses = train(model, slice_of(rank, size))
    compare(losses, list(model.module.parameters()))


def data_parallel_views(rank, size):
    data_parallel(rank, size, gradient_as_bucket_view=True, static_graph=True)


def fully_sharded(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    model = make_model()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    losses = train(model, slice_of(rank, size))
    compare(losses, list(model.parameters()))


def tensor_parallel(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    model = parallelize_module(make_model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    losses = train(model, slice(None))
    compare(losses, list(model.parameters()))


def pipelined(rank, size, schedule):
    """One layer and what follows it on each rank; gradients of the whole batch equal those of one process."""
    whole, (x, y) = make_model(), batches()[0]
    part = nn.Sequential(*list(whole)[:2]) if rank == 0 else nn.Sequential(*list(whole)[2:])
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    run = schedule(stage, n_microbatches=4, loss_fn=lambda got, want: ((got - want) ** 2).mean())
    losses = []
    if rank == 0:
        run.step(x)
    else:
        run.step(target=y, losses=losses)
    single = make_model()
    loss = ((single(x) - y) ** 2).mean()
    loss.backward()
    own = list(single)[:2] if rank == 0 else list(single)[2:]
    for got, want in zip(part.parameters(), nn.Sequential(*own).parameters()):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-6)  # sums of four parts in another order
    if rank == 1:
        torch.testing.assert_close(torch.stack(losses).mean(), loss.detach(), rtol=1e-5, atol=1e-6)


def distributed_tensors(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(60.0).view(10, 6)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    assert torch.equal((sharded @ distribute_tensor(whole.t().contiguous(), mesh, [Replicate()])).full_tensor(), whole @ whole.t())
    assert sharded.sum().full_tensor() == whole.sum()


class Training(unittest.TestCase):
    def check(self, body, size=2, *arguments):
        self.assertEqual(on_ranks(size, body, *arguments), [0] * size)

    def test_pipeline_parallel(self):
        self.check(pipelined, 2, ScheduleGPipe)
        self.check(pipelined, 2, Schedule1F1B)

    def test_ddp(self):
        self.check(data_parallel)

    def test_ddp_with_gradients_as_views(self):
        self.check(data_parallel_views, 4)

    def test_fsdp2(self):
        self.check(fully_sharded)
        self.check(fully_sharded, 4)

    def test_tensor_parallel(self):
        self.check(tensor_parallel)

    def test_dtensor(self):
        self.check(distributed_tensors)
        self.check(distributed_tensors, 3)

    def test_ddp_under_the_checking_wrapper(self):
        self.assertEqual(on_ranks(2, data_parallel, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}.items()), [0, 0])


if __name__ == "__main__":
    unittest.main()
