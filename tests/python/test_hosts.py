"""Ranks that play to be on several hosts: everything that programs do on one, over shared memory inside a host and TCP between hosts."""
import os
import signal
import tempfile
import time
import unittest

import torch
import torch.distributed as dist
from ranks import await_words, hurry, met, on_ranks, say
from test_collectives import foreign_memory, movements, reductions, scattered_sums, uneven
from test_failures import expect, words_of
from test_groups import coalesced, functional_collectives, groups, messages, objects, profiled, sequence_numbers, split, surface, unattended
from test_surface import (
    check_world,
    failing_hook,
    hooks,
    leaves_and_inference,
    memory,
    merged,
    reports_beside_operations,
    sparse_gradients,
    sparse_sums,
    waiting_hook,
)
from test_training import data_parallel, distributed_tensors, fully_sharded, pipelined, tensor_parallel
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

import shoal


def backend_of(group):
    return group._get_backend(torch.device("cpu"))


def as_gloo(rank, size):
    """Of numbers whose sums depend on the order: close to Gloo's, and the same bits on all ranks."""
    gloo = dist.new_group(backend="gloo")
    generator = torch.Generator().manual_seed(rank)
    for count in (1, 77, 5001, 300_000):
        mine = torch.randn(count * size, generator=generator)
        results = []
        for group in (None, gloo):
            every = mine.clone()
            dist.all_reduce(every, group=group)
            part, gathered = torch.empty(count), torch.empty(count * size * size)
            dist.reduce_scatter_tensor(part, mine, group=group)
            dist.all_gather_into_tensor(gathered, mine, group=group)
            exchanged = torch.empty_like(mine)
            dist.all_to_all_single(exchanged, mine, group=group)
            rooted = mine.clone()
            dist.broadcast(rooted, size - 1, group=group)
            results.append((every, part, gathered, exchanged, rooted))
        for got, want in zip(*results):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)  # sums of a few numbers near 1 in another order
        bits = [torch.empty_like(every) for _ in range(size)]
        dist.all_gather(bits, results[0][0], group=gloo)
        assert all(torch.equal(other, bits[0]) for other in bits)


def where(rank, size, hosts):
    """What the environment says holds, and for the whole job."""
    options = shoal._c10d.options(backend_of(dist.group.WORLD))
    assert (options.host, options.interface, options.transport) == (str(rank * hosts // size), "lo", os.environ.get("SHOAL_TRANSPORT", ""))
    group = dist.new_group([0])
    if rank == 0:
        dist.all_reduce(torch.ones(10), group=group)
    try:
        dist.new_group(pg_options=shoal.Options(ports="9-9"))
    except ValueError as error:
        assert "ports is that of the whole job" in str(error), error
    else:
        raise AssertionError("another range of ports was ignored")


def parts_of_hosts(rank, size):
    """Groups in each of the ways in which members can lie: on one host, on as many as they are, on fewer."""
    for members in ([0, 1], [2, 3], [0, 2], [3, 1, 0], [1], [3, 2, 1, 0]):
        group = dist.new_group(members)
        if rank not in members:
            continue
        for count in (5, 5000, 200_000):
            tensor = torch.full((count,), float(rank + 1))
            dist.all_reduce(tensor, group=group)
            assert torch.equal(tensor, torch.full((count,), float(sum(m + 1 for m in members))))
        ranks = [None] * len(members)
        dist.all_gather_object(ranks, rank, group=group)
        assert sorted(ranks) == sorted(members)
    dist.barrier()


def any_source(rank, size):
    for count in (0, 1, 500, 100_000):
        if rank == 0:
            heard = set()
            for _ in range(size - 1):
                got = torch.empty(count)
                source = dist.recv(got)
                assert torch.equal(got, torch.full((count,), float(source)))
                heard.add(source)
            assert heard == set(range(1, size)), heard
        else:
            dist.send(torch.full((count,), float(rank)), 0)
        dist.barrier()


def killed(rank, size):
    met(size)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    text, seconds = words_of(lambda: dist.all_reduce(torch.ones(100_000)))
    expect(text, "rank 2")
    assert seconds < 50, seconds


def killed_in_a_part(rank, size):
    """Ranks 2 and 3 share a host, and only they are in the operation: ranks 0 and 1 hear of it all the same."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    met(size)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 3:
        words_of(lambda: dist.all_reduce(torch.ones(100_000), group=pairs[1]))
    else:
        text, _ = words_of(lambda: [dist.all_reduce(torch.ones(1000), group=pairs[0]) for _ in iter(int, 1)])
        expect(text, "rank 2")


def different_calls(rank, size):
    met(size)
    call = (lambda: dist.all_reduce(torch.ones(10_000))) if rank == 0 else (lambda: dist.broadcast(torch.ones(20_000), 0))
    text, _ = words_of(call)
    expect(text, "ranks call different", "broadcast of 20000 x f32")


def absent(rank, size):
    dist.all_reduce(torch.ones(10))
    if rank == size - 1:
        await_words("in time", range(size - 1))
        os._exit(0)
    hurry(3)
    text, seconds = words_of(lambda: dist.all_reduce(torch.ones(10)))
    say("in time")
    expect(text, "all_reduce")
    assert seconds < 9, seconds
    assert shoal._c10d.error(backend_of(dist.group.WORLD)) in ("timeout", "communication")


def left_early(rank, size):
    met(size)
    if rank == size - 1:
        dist.destroy_process_group()
        return
    text, seconds = words_of(lambda: dist.all_reduce(torch.ones(10)))
    expect(text, "has left")
    assert seconds < 50, seconds


def left_behind_a_model(rank, size):
    """Rank 0 leaves while a model of DDP keeps its group: the others' own group goes on for longer than a rank may be silent."""
    others = dist.new_group(list(range(1, size)))
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    met(size)
    if rank == 0:
        dist.destroy_process_group()
        time.sleep(6)
        del model
        return
    begun = time.monotonic()
    is_over = torch.zeros(1)
    while not is_over.item():
        is_over.fill_(time.monotonic() - begun > 5)
        dist.all_reduce(is_over, group=others)
        time.sleep(0.01)


def aborted(rank, size):
    def call():
        dist.barrier()  # all have met; the abort may come in here already
        dist.all_reduce(torch.ones(10), async_op=True).wait()

    if rank == 0:
        dist.barrier()
        backend_of(dist.group.WORLD).abort()
    else:
        expect(words_of(call)[0], "the program aborted the group")
    expect(words_of(lambda: dist.all_reduce(torch.ones(10)))[0], "the program aborted the group")


def recorded(rank, size):
    for _ in range(3):
        dist.all_reduce(torch.ones(10_000))
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    hurry(3)
    words_of(lambda: dist.all_reduce(torch.ones(1000)))


def ends_without_a_word(rank, size):
    """Whoever exits without destroy_process_group has left in good order: the others' own groups go on."""
    pair = dist.new_group([0, 1])
    dist.barrier()
    if rank > 1:
        shoal._backend._leave(os.getpid())
        os._exit(0)
    for _ in range(200):
        dist.all_reduce(torch.ones(1000), group=pair)


def shrunk(rank, size):
    if rank == 1:
        return
    dist.shrink_group([1])
    check_world(rank - (rank > 1), size - 1)


def shrunk_after_a_death(rank, size):
    met(size)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    words_of(lambda: dist.all_reduce(torch.ones(100_000)))
    dist.shrink_group([1], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    check_world(rank - (rank > 1), size - 1)


def in_rank_order(rank, size):
    """The bits of one host's fold, however ranks lie."""
    every = [torch.randn(5001, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    want = every[0].clone()
    for other in every[1:]:
        want += other
    got = every[rank].clone()
    dist.all_reduce(got)
    assert torch.equal(got, want)


class Hosts(unittest.TestCase):
    """Of the arrangements the first is a hierarchy, the second TCP alone."""

    def check(self, body, *arguments, arrangements=((4, 2), (3, 3)), codes=None, **options):
        for size, hosts in arrangements:
            with self.subTest(size=size, hosts=hosts):
                self.assertEqual(on_ranks(size, body, *arguments, hosts=hosts, **options), codes(size) if codes else [0] * size)

    def test_reductions(self):
        self.check(reductions, arrangements=[(3, 2), (2, 2)])

    def test_movements(self):
        self.check(movements, arrangements=[(3, 2), (2, 2)])

    def test_reduce_scatter(self):
        self.check(scattered_sums)

    def test_uneven_parts_and_foreign_memory(self):
        self.check(uneven)
        self.check(foreign_memory)

    def test_results_are_those_of_gloo(self):
        self.check(as_gloo)

    def test_one_memory_in_the_order_of_ranks(self):
        self.check(in_rank_order, options={"in_rank_order": True})

    def test_tcp_on_one_host(self):
        environment = {"SHOAL_TRANSPORT": "tcp", "SHOAL_PORTS": "20000-29999"}.items()
        for body in (scattered_sums, messages, coalesced):
            self.check(body, arrangements=[(3, 1)], environment=environment)
        self.check(where, 1, arrangements=[(2, 1)], environment=environment)
        self.check(messages, arrangements=[(3, 1)], environment={"SHOAL_TRANSPORT": "tcp", "SHOAL_RAILS": "3"}.items())
        self.check(messages, arrangements=[(3, 1)], environment={"SHOAL_TRANSPORT": "tcp", "SHOAL_TLS": "on", "SHOAL_JOB_KEY": "a secret"}.items())

    def test_a_rank_with_another_job_key_is_refused(self):
        for keys in (("one", "another"), ("one", "")):
            own = [{"SHOAL_JOB_KEY": key} for key in keys]
            self.assertEqual(on_ranks(2, messages, environment={"SHOAL_TRANSPORT": "tcp"}, own=own, timeout_s=2), [1, 1])

    def test_where_ranks_are(self):
        self.check(where, 2, arrangements=[(4, 2)])

    def test_messages(self):
        self.check(messages)
        self.check(any_source)

    def test_objects(self):
        self.check(objects)

    def test_groups(self):
        for hosts in (2, 4):
            self.check(groups, arrangements=[(4, hosts)])
            self.check(parts_of_hosts, arrangements=[(4, hosts)])

    def test_operations_that_nobody_waits_for(self):
        self.check(unattended)

    def test_coalescing_and_functional_collectives(self):
        self.check(coalesced)
        self.check(functional_collectives)

    def test_sequence_numbers_and_many_in_flight(self):
        self.check(sequence_numbers)

    def test_the_rest_of_the_interface(self):
        for body in (surface, profiled, sparse_sums, memory, hooks, failing_hook, leaves_and_inference):
            self.check(body)
        self.check(waiting_hook, arrangements=[(3, 3)])
        # Over TCP operations wait while their rank asks the others for reports: a round takes 50 times as long as in memory.
        self.check(reports_beside_operations, 30, arrangements=[(3, 3)])
        self.check(split, arrangements=[(3, 2), (3, 3)])
        self.check(merged, arrangements=[(4, 2), (4, 4)])

    def test_training(self):
        halves = [(4, 2), (2, 2)]  # into which the batch divides
        self.check(data_parallel, arrangements=halves)
        self.check(sparse_gradients, arrangements=halves)
        self.check(fully_sharded, arrangements=halves)
        self.check(tensor_parallel)
        self.check(distributed_tensors)
        for schedule in (ScheduleGPipe, Schedule1F1B):
            self.check(pipelined, schedule, arrangements=[(2, 2)])

    def test_the_checking_wrapper(self):
        for body in (objects, coalesced, data_parallel):
            self.check(body, arrangements=[(4, 2), (2, 2)], environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}.items())

    def test_a_killed_rank(self):
        self.check(killed, codes=lambda size: [0, 0, -signal.SIGKILL, 0][:size])
        self.check(killed_in_a_part, arrangements=[(4, 2)], codes=lambda size: [0, 0, -signal.SIGKILL, 0])

    def test_different_calls(self):
        self.check(different_calls)

    def test_a_rank_that_does_not_come(self):
        self.check(absent)

    def test_a_rank_that_leaves_early(self):
        self.check(left_early)
        self.check(left_behind_a_model, arrangements=[(3, 3)])

    def test_a_rank_that_exits(self):
        self.check(ends_without_a_word)

    def test_abort(self):
        self.check(aborted)

    def test_shrink(self):
        self.check(shrunk)
        self.check(shrunk_after_a_death, codes=lambda size: [0, -signal.SIGKILL, 0, 0][:size])

    def test_what_ranks_were_doing_is_written_down(self):
        for size, hosts in ((4, 2), (3, 3)):
            with tempfile.TemporaryDirectory() as folder:
                codes = on_ranks(size, recorded, hosts=hosts, stops=size - 1, flight_directory=folder)
                self.assertEqual(codes, [0] * (size - 1) + [124])
                self.assertTrue({f"flight-rank-{r}.jsonl" for r in range(size - 1)} < set(os.listdir(folder)), os.listdir(folder))


if __name__ == "__main__":
    unittest.main()
