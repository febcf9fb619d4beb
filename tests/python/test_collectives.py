"""Every collective against its definition, computed from what all ranks contribute (each rank can compute everybody's tensors)."""
import unittest

import torch
import torch.distributed as dist
from ranks import on_ranks

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
OTHERS = [torch.bool, torch.complex64, torch.float8_e4m3fn]
COUNTS = [0, 1, 7, 1024, 5001]


def value(rank, count, dtype, salt=0):
    """Small integers: every type holds them and their sums exactly."""
    numbers = (torch.arange(count) * 3 + rank * 5 + salt) % 7
    return numbers.bool() if dtype == torch.bool else numbers.to(dtype)


def same(got, want, what):
    view = {torch.float8_e4m3fn: torch.uint8}.get(got.dtype, got.dtype)
    assert got.shape == want.shape and torch.equal(got.view(view), want.view(view)), f"{what}: {got} is not {want}"


def strided(tensor):
    """The same values in memory that is not contiguous."""
    wide = torch.zeros(tensor.numel(), 2, dtype=tensor.dtype)
    wide[:, 0] = tensor
    return wide[:, 0]


def reductions(rank, size):
    ops = {dist.ReduceOp.SUM: lambda t: t.sum(0), dist.ReduceOp.PRODUCT: lambda t: t.prod(0), dist.ReduceOp.MIN: lambda t: t.amin(0),
           dist.ReduceOp.MAX: lambda t: t.amax(0)}
    for dtype in FLOATS + INTEGERS:
        for count in COUNTS:
            for op, reference in ops.items():
                every = torch.stack([value(r, count, torch.int64, 1) for r in range(size)])
                if op == dist.ReduceOp.PRODUCT:
                    every = every % 3 + 1  # 3^4 fits in every type
                mine, want = every[rank].to(dtype), (reference(every) if count else every[0]).to(dtype)
                for make in (torch.Tensor.clone, strided):
                    for wait in (False, True):
                        tensor = make(mine)
                        work = dist.all_reduce(tensor, op, async_op=wait)
                        if wait:
                            work.wait()
                        same(tensor.contiguous(), want, f"all_reduce {dtype} {count} {op}")
                tensor = mine.clone()
                dist.reduce(tensor, size - 1, op)
                same(tensor, want if rank == size - 1 else mine, f"reduce {dtype} {count} {op}")
    for op, reference in {dist.ReduceOp.BAND: lambda a, b: a & b, dist.ReduceOp.BOR: lambda a, b: a | b, dist.ReduceOp.BXOR: lambda a, b: a ^ b}.items():
        tensor, want = value(rank, 100, torch.int32), value(0, 100, torch.int32)
        for r in range(1, size):
            want = reference(want, value(r, 100, torch.int32))
        dist.all_reduce(tensor, op)
        same(tensor, want, str(op))
    tensor = torch.full((3000,), float(rank))
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    same(tensor, torch.full((3000,), (size - 1) / 2), "avg")
    tensor = torch.full((3000,), float(rank + 1))
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
    same(tensor, torch.full((3000,), size * (size + 1) / 4), "premul_sum")
    tensors = [torch.full((n,), float(rank + n)) for n in (1, 2000, 0, 33)]
    dist.all_reduce_coalesced(tensors)
    for tensor, n in zip(tensors, (1, 2000, 0, 33)):
        same(tensor, torch.full((n,), float(size * n + size * (size - 1) // 2)), "all_reduce_coalesced")


def movements(rank, size):
    ranks = range(size)
    for dtype in FLOATS + INTEGERS + OTHERS:
        for count in COUNTS:
            mine, every = value(rank, count, dtype), [value(r, count, dtype) for r in ranks]
            for root in {0, size - 1}:
                tensor = value(rank, count, dtype)
                dist.broadcast(tensor, root)
                same(tensor, every[root], f"broadcast {dtype} {count}")
                outputs = [torch.empty_like(mine) for _ in ranks] if rank == root else None
                dist.gather(mine, outputs, root)
                if rank == root:
                    for output, want in zip(outputs, every):
                        same(output, want, f"gather {dtype} {count}")
                if hasattr(dist, "gather_single"):  # not in PyTorch 2.11
                    output = torch.empty(count * size, dtype=dtype) if rank == root else None
                    dist.gather_single(mine, output, root)
                    if rank == root:
                        same(output, torch.cat(every), f"gather_single {dtype} {count}")
                parts = [value(r, count, dtype, 3) for r in ranks]
                output = torch.empty_like(mine)
                dist.scatter(output, parts if rank == root else None, root)
                same(output, parts[rank], f"scatter {dtype} {count}")
            outputs = [torch.empty_like(mine) for _ in ranks]
            dist.all_gather(outputs, mine)
            for output, want in zip(outputs, every):
                same(output, want, f"all_gather {dtype} {count}")
            output = torch.empty(count * size, dtype=dtype)
            work = dist.all_gather_into_tensor(output, mine, async_op=True)
            work.wait()
            same(output, torch.cat(every), f"all_gather_into_tensor {dtype} {count}")
            output, parts = torch.empty_like(output), [[value(a, count, dtype, b) for b in ranks] for a in ranks]
            dist.all_to_all_single(output, torch.cat(parts[rank]))
            same(output, torch.cat([parts[r][rank] for r in ranks]), f"all_to_all_single {dtype} {count}")
            outputs = [torch.empty_like(mine) for _ in ranks]
            dist.all_to_all(outputs, parts[rank])
            for r in ranks:
                same(outputs[r], parts[r][rank], f"all_to_all {dtype} {count}")
    dist.barrier()


def scattered_sums(rank, size):
    for dtype in FLOATS + INTEGERS:
        for count in COUNTS:
            parts = [[value(a, count, torch.int64, b) for b in range(size)] for a in range(size)]
            want = sum(parts[r][rank] for r in range(size)).to(dtype)
            output = torch.empty(count, dtype=dtype)
            dist.reduce_scatter_tensor(output, torch.cat(parts[rank]).to(dtype))
            same(output, want, f"reduce_scatter_tensor {dtype} {count}")
            output = torch.empty(count, dtype=dtype)
            dist.reduce_scatter(output, [part.to(dtype) for part in parts[rank]])
            same(output, want, f"reduce_scatter {dtype} {count}")


def uneven(rank, size):
    counts = [[(a * 2 + b) % 4 * 300 for b in range(size)] for a in range(size)]  # a sends so many rows to b
    rows = [torch.full((counts[rank][b], 3), float(rank * 10 + b)) for b in range(size)]
    got = torch.empty(sum(counts[a][rank] for a in range(size)), 3)
    dist.all_to_all_single(got, torch.cat(rows), [counts[a][rank] for a in range(size)], counts[rank])
    same(got, torch.cat([torch.full((counts[a][rank], 3), float(a * 10 + rank)) for a in range(size)]), "uneven all_to_all_single")
    outputs = [torch.empty(counts[a][rank], 3) for a in range(size)]
    dist.all_to_all(outputs, rows)
    for a in range(size):
        same(outputs[a], torch.full((counts[a][rank], 3), float(a * 10 + rank)), "uneven all_to_all")
    outputs = [torch.empty(r * 700 + 1) for r in range(size)]
    dist.all_gather(outputs, torch.full((rank * 700 + 1,), float(rank)))
    for r in range(size):
        same(outputs[r], torch.full((r * 700 + 1,), float(r)), "uneven all_gather")
    output = torch.empty(rank * 700 + 1)
    dist.reduce_scatter(output, [torch.full((r * 700 + 1,), float(rank)) for r in range(size)])
    same(output, torch.full((rank * 700 + 1,), size * (size - 1) / 2), "uneven reduce_scatter")


def lazy_negatives(rank, size):
    """Parts of one lazily negated tensor lie in a row, and their memory holds the opposite of their values."""
    whole = torch.arange(size * 3.0) + 10 * rank + 1
    outputs = [torch.empty(3) for _ in range(size)]
    dist.all_to_all(outputs, list(torch._neg_view(whole).chunk(size)))
    for source, output in enumerate(outputs):
        same(output, -(torch.arange(rank * 3.0, rank * 3.0 + 3) + 10 * source + 1), "all_to_all of negatives")
    into = torch.zeros(size * 3)
    dist.all_gather(list(torch._neg_view(into).chunk(size)), whole[:3])
    for source in range(size):
        same(into[source * 3:source * 3 + 3], -(torch.arange(3.0) + 10 * source + 1), "all_gather into negatives")


def foreign_memory(rank, size):
    """NumPy's memory is no rank's to see: it goes the staged way, mixed with tensors that others can see."""
    import numpy
    array = numpy.full(300_000, rank + 1, dtype=numpy.float32)
    tensor = torch.from_numpy(array) if rank == 0 else torch.full((300_000,), float(rank + 1))
    assert shoal_in_arena(tensor) == (rank != 0)
    dist.all_reduce(tensor)
    same(tensor, torch.full((300_000,), size * (size + 1) / 2), "all_reduce of foreign memory")
    if rank == 0:
        dist.send(torch.from_numpy(array), 1)
    elif rank == 1:
        got = torch.from_numpy(numpy.empty(300_000, dtype=numpy.float32))
        dist.recv(got, 0)
        same(got, torch.full((300_000,), size * (size + 1) / 2), "message of foreign memory")


def shoal_in_arena(tensor):
    import shoal
    return shoal.in_arena(tensor)


class Collectives(unittest.TestCase):
    def check(self, body, sizes=(2, 3)):
        for size in sizes:
            self.assertEqual(on_ranks(size, body), [0] * size)

    def test_reductions(self):
        self.check(reductions)

    def test_movements(self):
        self.check(movements)

    def test_reduce_scatter(self):
        self.check(scattered_sums, (2, 4))

    def test_uneven_parts(self):
        self.check(uneven, (2, 4))

    def test_lazy_negatives(self):
        self.check(lazy_negatives, (3,))

    def test_foreign_memory(self):
        self.check(foreign_memory)

    def test_a_world_of_one(self):
        self.check(reductions, (1,))
        self.check(movements, (1,))


if __name__ == "__main__":
    unittest.main()
