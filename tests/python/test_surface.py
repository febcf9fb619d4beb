"""The whole of c10d::Backend as this PyTorch declares it: what no other test calls."""
import datetime
import os
import pathlib
import re
import signal
import threading
import unittest
import unittest.mock

import torch
import torch.distributed as dist
import torch.nn as nn
from ranks import met, on_ranks
from torch.distributed.fsdp import fully_shard

import shoal

# What c10d does itself is right for memory of the CPU: nothing to connect to, a name to keep, no model of what NCCL's kernels take.
LEFT_TO_C10D = {"eagerConnectSingleDevice", "setGroupUid", "supportsTimeEstimation", "getBoundDeviceId", "setBoundDeviceId", "isInitialized", "clone"}
# Newer names of functions that are ours under the old name: c10d calls the old one.
LEFT_TO_C10D |= {"all_gather_single", "all_gather_single_coalesced", "reduce_scatter_single", "reduce_scatter_single_coalesced", "all_to_all_single",
                 "gather_into_tensor"}
# What newer versions of PyTorch ask for only where a backend says that it has it, and what they allow it to leave out: windows, changing members,
# hooks by number (the one hook of 2.11 is ours), estimates, memory that is given back between steps, a timeout for one operation.
LEFT_TO_C10D |= {"supportsWindow", "new_window", "supportsReconfigure", "get_reconfigure_handle", "reconfigure", "supportsAbortHooks",
                 "registerAbortHook", "unregisterAbortHook", "supportsCompletionHooks", "registerCompletionHook", "unregisterCompletionHook",
                 "startTimeEstimate", "endTimeEstimate", "suspend", "resume", "getMemoryStats", "addEphemeralTimeout"}
WORK_LEFT_TO_C10D = {"isSuccess", "exception"}  # they read what finish() was given
WORK_LEFT_TO_C10D |= {"getTimeout", "getCompletionKey"}  # of newer versions: the limit of one work is not told, and the key is for numbered hooks


def backend_of(group):
    return group._get_backend(torch.device("cpu"))


def virtuals(header):
    text = (pathlib.Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d" / header).read_text()
    return set(re.findall(r"\bvirtual\b[^;{]*?\b(\w+)\s*\(", text))


def overridden(header):
    text = (pathlib.Path(__file__).parents[2] / "python/src" / header).read_text()
    return set(re.findall(r"\b(\w+)\([^;{]*?\)\s*(?:const\s+)?override\b", text)) | set(re.findall(r"\bvirtual Works (\w+)\(", text))


def sparse_sums(rank, size):
    def of(r):  # rank 1 has nothing, others two rows that overlap with their neighbours', one of them twice
        rows = torch.tensor([[r, r + 1, r]]) if r != 1 else torch.empty(1, 0, dtype=torch.int64)
        return torch.sparse_coo_tensor(rows, torch.arange(1.0, 1 + 2 * rows.numel()).view(-1, 2) * (r + 1), (size + 1, 2))
    want = sum(of(r).to_dense() for r in range(size))
    for wait in (False, True):
        tensor = of(rank)
        work = dist.all_reduce(tensor, async_op=wait)
        if wait:
            work.wait()
        assert torch.equal(tensor.to_dense(), want), tensor
    try:
        dist.all_reduce(of(rank), dist.ReduceOp.MAX)
    except RuntimeError as error:
        assert "sums only" in str(error), error
    else:
        raise AssertionError("a maximum of sparse tensors was taken for a sum")
    try:
        dist.all_reduce(torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (5 + rank,)))
    except RuntimeError as error:
        assert "have different shapes" in str(error), error
    else:
        raise AssertionError("sparse tensors of different shapes were added")


def sparse_gradients(rank, size):
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Linear(4, 1))
    words = torch.arange(12) * 7 % 20
    model = nn.parallel.DistributedDataParallel(make())
    model(words.chunk(size)[rank]).mean().backward()
    one = make()
    one(words).mean().backward()
    for got, want in zip(model.module.parameters(), one.parameters()):  # the same few sums in another order
        torch.testing.assert_close(got.grad.to_dense(), want.grad.to_dense(), rtol=1e-5, atol=1e-7)


def memory(rank, size):
    backend = backend_of(dist.group.WORLD)
    assert backend.supports_tensor_alloc(torch.device("cpu")) and shoal._c10d.allocates_in_arena(backend)
    tensor = backend.allocate_tensor(1000, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert tensor.shape == (1000,) and tensor.dtype == torch.bfloat16 and shoal.in_arena(tensor)
    torch.manual_seed(0)
    model = fully_shard(nn.Linear(30, 50))
    model.set_allocate_memory_from_process_group_for_comm(True)
    model(torch.ones(2, 30)).sum().backward()
    assert torch.equal(model.weight.grad.full_tensor(), torch.full((50, 30), 2.0))


def hooks(rank, size):
    group, ended = dist.new_group(), []
    group._register_on_completion_hook(lambda info: ended.append((info.op_type, info.seq, info.active_duration)))
    works = [dist.all_reduce(torch.ones(100_000), group=group, async_op=True) for _ in range(3)]
    dist.broadcast(torch.ones(10), 0, group=group)
    group._wait_for_pending_works()
    assert all(work.is_completed() for work in works)
    assert sorted((str(op), seq) for op, seq, _ in ended) == [("OpType.ALLREDUCE", 1), ("OpType.ALLREDUCE", 2), ("OpType.ALLREDUCE", 3),
                                                              ("OpType.BROADCAST", 4)], ended
    assert all(duration > datetime.timedelta(0) for _, _, duration in ended)
    dist.all_reduce(torch.ones(10))  # of another group
    assert len(ended) == 4
    group._enable_collectives_timing()


def fails(info):
    raise ValueError("the hook's own mistake")


def waiting_hook(rank, size):
    """A hook may wait for the works in flight: not for the hooks, of which it is one."""
    group = dist.group.WORLD
    waited = []

    def hook(info):
        group._wait_for_pending_works()
        waited.append(info.seq)

    group._register_on_completion_hook(hook)
    for _ in range(3):
        dist.all_reduce(torch.ones(10))
    group._wait_for_pending_works()
    assert waited == [1, 2, 3], waited


def reports_beside_operations(rank, size, rounds=400):
    """A report reads what is in flight while another thread starts and ends operations."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    done = threading.Event()
    reports = []

    def report():
        while not done.is_set():
            reports.append(shoal._c10d.report(backend))
            backend._get_sequence_number_for_group()

    thread = threading.Thread(target=report)
    thread.start()
    for _ in range(rounds):
        works = [dist.all_reduce(torch.ones(2000), async_op=True) for _ in range(10)]
        for work in works:
            work.wait()
    done.set()
    thread.join()
    dist.barrier()
    assert reports and all(reports), reports[:3]


def failing_hook(rank, size):
    dist.group.WORLD._register_on_completion_hook(fails)
    for _ in range(2):
        dist.all_reduce(torch.ones(10))


def works(rank, size):
    tensor = torch.ones(1000)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.get_future_result().wait() == 0  # WorkResult.SUCCESS
    work.block_current_stream()
    assert tensor[0] == size
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(tensor)
    for work in manager.works:
        assert work.get_future_result().wait() == 0
        work.block_current_stream()
    assert tensor[0] == size * size
    # Rank 1 leaves when rank 0 has the operation under way, not before: a call that finds its peer
    # gone raises at once.
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        result = dist.all_reduce(tensor, async_op=True).get_future_result()
        store.set("under way", "")
        assert result.wait() == 2  # WorkResult.COMM_ERROR: rank 1 is gone, its error not raised
    else:
        store.wait(["under way"])


def leaves_and_inference(rank, size):
    """Results that are copied into place are not autograd's business."""
    leaf = nn.Parameter(torch.full((4, 3), float(rank)).t())
    dist.broadcast(leaf, 1)
    assert torch.equal(leaf.detach(), torch.ones(3, 4))
    with torch.inference_mode():
        tensor = torch.full((4, 3), float(rank)).t()
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    assert tensor[0, 0] == size * (size - 1) / 2
    dist.broadcast(torch.full((1,), float(rank)).expand(50) if rank == 0 else torch.empty(50), 0)  # what is only read may overlap itself


def merged(rank, size):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    store = dist.PrefixStore("merge", dist.distributed_c10d._get_default_store())
    whole = pairs[rank // 2].merge_remote_group(store, size, datetime.timedelta(seconds=60), "whole", "all again")
    assert whole.size() == size
    tensor = torch.full((5000,), float(rank))
    whole.allreduce([tensor]).wait()
    assert torch.equal(tensor, torch.full((5000,), size * (size - 1) / 2))
    ranks = [torch.empty(1) for _ in range(size)]
    whole.allgather([ranks], [torch.full((1,), float(whole.rank()))]).wait()
    assert torch.equal(torch.cat(ranks), torch.arange(float(size)))


def shrunk(rank, size):
    if rank == size - 1:
        return
    dist.shrink_group([size - 1])
    check_world(rank, size - 1)


def shrunk_after_a_death(rank, size):
    met(size)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(torch.ones(100_000))
    except RuntimeError as error:
        assert "rank 1 ended and left no error report" in str(error), error
    else:
        raise AssertionError("nobody missed rank 1")
    group = dist.shrink_group([1], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    check_world(0 if rank == 0 else 1, 2)
    group = backend_of(group).shrink([1 - dist.get_rank()])  # to one alone
    assert group.size() == 1


def check_world(rank, size):
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
    tensor = torch.full((5000,), float(rank + 1))
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((5000,), size * (size + 1) / 2))
    group = dist.new_group(list(range(size)))
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)


class Surface(unittest.TestCase):
    def check(self, body, size, codes=None, **options):
        self.assertEqual(on_ranks(size, body, **options), codes or [0] * size)

    def test_every_function_of_c10d_is_ours_or_named_here(self):
        self.assertEqual(virtuals("Backend.hpp") - LEFT_TO_C10D, overridden("backend.h") & virtuals("Backend.hpp"))
        self.assertEqual(virtuals("Work.hpp") - WORK_LEFT_TO_C10D, overridden("host_work.h") & virtuals("Work.hpp"))

    def test_what_is_given_wins_over_the_environment(self):
        names = ("transport", "interface", "ports", "advertise", "rails", "silence_s", "tls", "routes", "job_key", "host")
        environment = {"SHOAL_" + name.upper(): "there-" + name for name in names}
        with unittest.mock.patch.dict(os.environ, environment):
            for given in names:
                options = shoal._backend._with_environment(shoal.Options(**{given: "here"}))
                for name in names:
                    self.assertEqual(getattr(options, name), "here" if name == given else "there-" + name)
            options = shoal._backend._with_environment(shoal.Options(flight_directory="/flights", in_rank_order=True))
            self.assertEqual((options.flight_directory, options.in_rank_order), ("/flights", True))
            self.assertFalse(shoal._backend._with_environment(shoal.Options()).in_rank_order)
        options = shoal._backend._with_environment(shoal.Options())
        self.assertEqual([getattr(options, name) for name in names], [os.environ.get("SHOAL_" + name.upper(), "") for name in names])

    def test_sparse_sums(self):
        self.check(sparse_sums, 3)

    def test_ddp_with_sparse_gradients(self):
        self.check(sparse_gradients, 2)

    def test_memory(self):
        self.check(memory, 2)

    def test_hooks_on_completion(self):
        self.check(hooks, 2)
        self.check(failing_hook, 2)
        self.check(waiting_hook, 2)

    def test_reports_beside_operations(self):
        self.check(reports_beside_operations, 2)

    def test_works(self):
        self.check(works, 2)

    def test_leaves_and_inference(self):
        self.check(leaves_and_inference, 2)

    def test_merge(self):
        self.check(merged, 4)

    def test_shrink(self):
        self.check(shrunk, 3)

    def test_shrink_after_a_death(self):
        self.check(shrunk_after_a_death, 3, [0, -signal.SIGKILL, 0])


if __name__ == "__main__":
    unittest.main()
