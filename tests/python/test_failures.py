"""When one rank fails, the others say which and what, and soon."""
import json
import os
import signal
import tempfile
import time
import unittest

import torch
import torch.distributed as dist
from ranks import await_words, hurry, met, on_ranks, say

import shoal


def words_of(call):
    begin = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        return str(error), time.monotonic() - begin
    raise AssertionError("no error")


def expect(text, *parts):
    for part in parts:
        assert part in text, f"'{part}' is not in: {text}"


def different_calls(rank, size):
    call = (lambda: dist.all_reduce(torch.ones(10))) if rank == 0 else (lambda: dist.broadcast(torch.ones(20), 0))
    text, _ = words_of(call)
    expect(text, "ranks call different collectives", "all_reduce of 10 x f32 by sum", "broadcast of 20 x f32 with root 0")


def absent(rank, size):
    dist.all_reduce(torch.ones(10))
    if rank == 1:
        await_words("in time", [0])
        os._exit(0)
    hurry(2)
    text, seconds = words_of(lambda: dist.all_reduce(torch.ones(10)))
    say("in time")
    expect(text, "not complete before its deadline", "rank 1 never entered #2")
    assert 1.9 < seconds < 9, seconds


def absent_from_a_future(rank, size):
    if rank == 1:
        await_words("in time", [0])
        os._exit(0)
    hurry(2)
    work = dist.all_reduce(torch.ones(100_000), async_op=True)
    text, _ = words_of(lambda: work.wait())
    say("in time")
    expect(text, "not complete before its deadline", "rank 1 never entered #1")
    assert not work.is_success() and work.is_completed()
    assert shoal._c10d.error(dist.group.WORLD._get_backend(torch.device("cpu"))) == "timeout"


def killed(rank, size):
    met(size)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    text, seconds = words_of(lambda: dist.all_reduce(torch.ones(100_000)))
    expect(text, "rank 2 ended and left no error report")
    assert seconds < 50, seconds


def own_words(rank, size):
    """A rank that leaves in good order and too early."""
    met(size)
    if rank == 1:
        dist.destroy_process_group()
        return
    text, _ = words_of(lambda: dist.all_reduce(torch.ones(10)))
    expect(text, "rank 1 has left the group")


def aborted(rank, size):
    if rank == 0:
        dist.group.WORLD._get_backend(torch.device("cpu")).abort()
        say("aborted")
    else:
        await_words("aborted", [0])  # nothing begins any more, though all ranks are there
    text, _ = words_of(lambda: dist.all_reduce(torch.ones(10)))
    expect(text, "the program aborted the group")


def wrong_arguments(rank, size):
    expect(words_of(lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), dist.ReduceOp.AVG))[0], "all_reduce of i32 by avg")
    expect(words_of(lambda: dist.all_gather_into_tensor(torch.ones(5), torch.ones(3)))[0], "5 elements")
    expect(words_of(lambda: dist.all_reduce(torch.ones(3, 3).to_sparse(), dist.ReduceOp.MAX))[0], "sums only")
    try:
        dist.new_group([0, 1], pg_options=object())
    except (ValueError, AssertionError) as error:
        expect(str(error), "pg_options of type shoal.Options")
    else:
        raise AssertionError("pg_options were ignored")
    try:
        dist.new_group([0, 1], pg_options=shoal.Options(flight_directory="/elsewhere"))
    except ValueError as error:
        expect(str(error), "init_process_group")
    else:
        raise AssertionError("another flight_directory was ignored")


def short_wait(rank, size):
    """wait(timeout) gives up waiting, not the operation."""
    import datetime
    got = torch.empty(1)
    if rank == 0:
        work = dist.irecv(got, 1)
        expect(words_of(lambda: work.wait(datetime.timedelta(milliseconds=100)))[0], "it goes on")
        dist.send(torch.ones(1), 1)
        work.wait()
        assert got.item() == 5
    else:
        dist.recv(got, 0)
        dist.send(torch.full((1,), 5.0), 0)


def stuck(rank, size):
    """Rank 1 stops itself in the middle; nobody but it goes on to the end."""
    half = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(torch.ones(10), group=half)
    for _ in range(5):
        dist.all_reduce(torch.ones(10))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    hurry(2)
    words_of(lambda: dist.all_reduce(torch.ones(1000)))


class Failures(unittest.TestCase):
    def check(self, body, size=2, codes=None, **options):
        self.assertEqual(on_ranks(size, body, **options), codes or [0] * size)

    def test_what_ranks_were_doing_is_written_down(self):
        with tempfile.TemporaryDirectory() as folder:
            self.check(stuck, 3, [0, 124, 0], stops=1, flight_directory=folder)
            lines = {name: [json.loads(line) for line in open(os.path.join(folder, name))] for name in os.listdir(folder)}
        self.assertEqual(sorted(lines), ["flight-rank-0.jsonl", "flight-rank-2.jsonl", "flight.jsonl"])
        self.assertEqual([line["rank"] for line in lines["flight.jsonl"] if line["record"] == "rank"], [0, 2])
        verdicts = [line["text"] for line in lines["flight.jsonl"] if line["record"] == "verdict"]
        self.assertEqual(len(verdicts), 1)
        expect(verdicts[0], "#6 all_reduce of 1000 x f32 by sum: rank 1 never entered it (its last was #5 all_reduce of 10 x f32 by sum)",
               "ranks 0, 2 are inside it")
        self.assertEqual(len({line["group"] for line in lines["flight-rank-0.jsonl"] if line["record"] == "call"}), 2)

    def test_different_calls(self):
        self.check(different_calls)

    def test_a_rank_that_does_not_come(self):
        self.check(absent)

    def test_a_rank_that_does_not_come_to_an_asynchronous_call(self):
        self.check(absent_from_a_future)

    def test_a_killed_rank(self):
        self.check(killed, 3, [0, 0, -signal.SIGKILL])

    def test_a_rank_that_leaves_early(self):
        self.check(own_words)

    def test_abort(self):
        self.check(aborted)

    def test_wrong_arguments(self):
        self.check(wrong_arguments, 2)

    def test_a_short_wait(self):
        self.check(short_wait)


if __name__ == "__main__":
    unittest.main()
