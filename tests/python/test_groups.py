"""Messages, groups, coalescing, objects, functional collectives: what programs do beside the plain calls."""
import datetime
import unittest

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from ranks import await_words, on_ranks, say
from torch.distributed.device_mesh import init_device_mesh

import shoal


def messages(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 256, 257, 100_000):
        got = torch.empty(count)
        works = [dist.isend(torch.full((count,), float(rank)), right), dist.irecv(got, left)]
        for work in works:
            work.wait()
        assert torch.equal(got, torch.full((count,), float(left)))
    if rank == 0:  # the later tag is asked for first
        dist.send(torch.tensor([1.0]), 1, tag=1)
        dist.send(torch.tensor([2.0]), 1, tag=2)
    elif rank == 1:
        a, b = torch.empty(1), torch.empty(1)
        dist.recv(b, 0, tag=2)
        dist.recv(a, 0, tag=1)
        assert (a.item(), b.item()) == (1.0, 2.0)
    if rank == 0:
        heard = set()
        for _ in range(size - 1):
            got = torch.empty(500)
            source = dist.recv(got)
            assert torch.equal(got, torch.full((500,), float(source)))
            heard.add(source)
        assert heard == set(range(1, size))
    else:
        dist.send(torch.full((500,), float(rank)), 0)
    dist.barrier()  # a receive from any source takes what comes, the next message too
    got = torch.empty(2000)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((2000,), float(rank)), right), dist.P2POp(dist.irecv, got, left)]):
        work.wait()
    assert torch.equal(got, torch.full((2000,), float(left)))
    objects = [None, None]
    if rank == 0:
        dist.send_object_list(["a", {"b": 1}], 1)
    elif rank == 1:
        dist.recv_object_list(objects, 0)
        assert objects == ["a", {"b": 1}]


def objects(rank, size):
    every = [None] * size
    dist.all_gather_object(every, {"rank": rank, "text": "x" * rank * 3000})
    assert every == [{"rank": r, "text": "x" * r * 3000} for r in range(size)]
    some = ["first", 2] if rank == 0 else [None, None]
    dist.broadcast_object_list(some, 0)
    assert some == ["first", 2]
    gathered = [None] * size if rank == 1 else None
    dist.gather_object(rank, gathered, 1)
    assert rank != 1 or gathered == list(range(size))
    mine = [None]
    dist.scatter_object_list(mine, [f"to {r}" for r in range(size)] if rank == 0 else None, 0)
    assert mine == [f"to {rank}"]


def groups(rank, size):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    odd_even = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    everybody = dist.new_group(list(range(size)))
    pair, parity = pairs[rank // 2], odd_even[rank % 2]
    tensor = torch.full((3000,), float(rank))
    dist.all_reduce(tensor, group=pair)
    assert tensor[0] == (1 if rank < 2 else 5)
    tensor = torch.full((3000,), float(rank))
    dist.broadcast(tensor, 2 + rank % 2, group=parity)
    assert tensor[0] == 2 + rank % 2
    # Waited for in different orders on different ranks, across groups.
    for round_ in range(20):
        tensors = [torch.full((2000 + round_,), float(rank + i)) for i in range(3)]
        works = [dist.all_reduce(t, group=g, async_op=True) for t, g in zip(tensors, (pair, parity, everybody))]
        for i in ((0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1))[rank]:
            works[i].wait()
        assert tensors[0][0] == (1 if rank < 2 else 5) and tensors[1][0] == (4 if rank % 2 == 0 else 6) and tensors[2][0] == 6 + 2 * 4
    assert dist.get_group_rank(parity, rank) == rank // 2
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    tensor = torch.full((10,), float(rank))
    dist.all_reduce(tensor, group=mesh.get_group("a"))
    assert tensor[0] == (2 if rank % 2 == 0 else 4)
    dist.destroy_process_group(everybody)
    dist.barrier()


def unattended(rank, size):
    """Rank 0 starts and looks away; the others must not wait for it to look back."""
    tensor = torch.ones(100_000)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        await_words("done", range(1, size))
        work.wait()
    else:
        dist.all_reduce(tensor)
        say("done")
    assert torch.equal(tensor, torch.full((100_000,), float(size)))
    dist.barrier()
    tensor = torch.ones(100_000)  # a future that nobody waits for completes, and its callbacks run
    seen = []
    future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda f: seen.append(f.value()[0][0].item()))
    future.wait()
    assert seen == [size]
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        pass
    assert work.is_success() and tensor[0] == size * size


def coalesced(rank, size):
    tensors = [torch.full((n,), float(rank)) for n in (5, 5000)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all(t[0] == size * (size - 1) / 2 for t in tensors)
    outputs = [torch.empty(n * size) for n in (5, 5000)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, n in zip(outputs, (5, 5000)):
            dist.all_gather_into_tensor(output, torch.full((n,), float(rank)))
    manager.wait()
    for output, n in zip(outputs, (5, 5000)):
        assert torch.equal(output, torch.arange(float(size)).repeat_interleave(n))
    shards = [torch.empty(n) for n in (5, 5000)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for shard, n in zip(shards, (5, 5000)):
            dist.reduce_scatter_tensor(shard, torch.arange(float(size)).repeat_interleave(n))
    manager.wait()
    assert all(s[0] == rank * size for s in shards)


def functional_collectives(rank, size):
    group = dist.group.WORLD
    tensor = torch.full((4, 3), float(rank))
    assert functional.all_reduce(tensor, "sum", group)[0, 0] == size * (size - 1) / 2
    assert torch.equal(functional.all_gather_tensor(tensor, 0, group)[:, 0], torch.arange(float(size)).repeat_interleave(4))
    assert torch.equal(functional.reduce_scatter_tensor(torch.ones(4 * size, 3), "sum", 0, group), torch.full((4, 3), float(size)))
    got = functional.all_to_all_single(torch.arange(float(size)), None, None, group)
    assert torch.equal(got, torch.full((size,), float(rank)))
    assert functional.broadcast(tensor, 1, group)[0, 0] == 1


def split(rank, size):
    part = dist.group.WORLD.split_group([0, 2])  # dist.split_group refuses CPU groups; this is what it would call
    if rank == 1:
        assert part is None
        return
    tensor = torch.full((5000,), float(rank))
    part.allreduce([tensor]).wait()
    assert part.size() == 2 and tensor[0] == 2


def sequence_numbers(rank, size):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = backend._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(1))
    assert backend._get_sequence_number_for_group() == before + 1
    assert backend.supports_splitting and backend.name() == "shoal"
    works = [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(300)]  # more than the ranks can announce at once
    for work in works:
        work.wait()


def surface(rank, size):
    """What else the interface of c10d 2.11 has."""
    world = dist.group.WORLD
    backend = world._get_backend(torch.device("cpu"))
    assert (backend.rank(), backend.size()) == (rank, size) and backend.supports_coalescing
    options = shoal._c10d.options(backend)
    assert isinstance(options, shoal.Options) and options.backend == "shoal" and options.flight_directory == ""
    backend.set_timeout(datetime.timedelta(seconds=7))
    assert shoal._c10d.options(backend)._timeout == datetime.timedelta(seconds=7)
    assert shoal._c10d.error(backend) == "success"
    world.monitored_barrier(datetime.timedelta(seconds=7), True)  # dist.monitored_barrier refuses every backend but Gloo; this is what it would call
    group = dist.new_group()
    dist.all_reduce(torch.ones(1000), group=group)
    part = group._get_backend(torch.device("cpu"))
    for _ in range(2):
        part.shutdown()
    try:
        dist.all_reduce(torch.ones(1000), group=group)
    except RuntimeError as error:
        assert "has been shut down" in str(error), error
    else:
        raise AssertionError("a group went on after its end")
    dist.all_reduce(torch.ones(1000))  # the others do


def profiled(rank, size):
    with torch.profiler.profile() as profile:
        dist.all_reduce(torch.ones(10))
    assert any(event.key == "shoal:all_reduce" for event in profile.key_averages())


class Groups(unittest.TestCase):
    def check(self, body, *sizes):
        for size in sizes:
            self.assertEqual(on_ranks(size, body), [0] * size)

    def test_messages(self):
        self.check(messages, 2, 3)

    def test_objects(self):
        self.check(objects, 3)

    def test_groups(self):
        self.check(groups, 4)

    def test_operations_that_nobody_waits_for(self):
        self.check(unattended, 2, 3)

    def test_coalescing(self):
        self.check(coalesced, 2)

    def test_functional_collectives(self):
        self.check(functional_collectives, 2)

    def test_sequence_numbers_and_many_in_flight(self):
        self.check(sequence_numbers, 2)

    def test_the_rest_of_the_interface(self):
        self.check(surface, 2)

    def test_the_profiler_names_operations(self):
        self.check(profiled, 2)

    def test_split(self):
        self.check(split, 3)

    def test_the_checking_wrapper(self):
        for body in (messages, objects, coalesced):
            self.assertEqual(on_ranks(2, body, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}.items()), [0, 0])


if __name__ == "__main__":
    unittest.main()
