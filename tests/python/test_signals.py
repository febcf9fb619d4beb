"""Handlers of signals run while a rank waits for others, and Ctrl-C ends the wait: with the operation, which goes on, the group stays whole."""
import contextlib
import io
import os
import signal
import sys
import threading
import time
import unittest

import torch
import torch.distributed as dist
from ranks import await_words, met, on_ranks, say


def interrupted(rank, size, blocking, at_a_prompt):
    x = torch.full((10,), rank + 1.0)
    met(size)
    if rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
        if at_a_prompt:
            sys.ps1 = ">>> "
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        said, begin = io.StringIO(), time.monotonic()
        with contextlib.redirect_stderr(said):
            try:
                work = dist.all_reduce(x, async_op=not blocking)
                if work:
                    work.wait()
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("not interrupted")
        assert time.monotonic() - begin < 10
        expected = "shoal: the operation goes on; " if at_a_prompt else ""
        assert said.getvalue().startswith(expected) and bool(said.getvalue()) == at_a_prompt, said.getvalue()
        assert not at_a_prompt or "rank 1 never entered #1" in said.getvalue(), said.getvalue()
        say("interrupted")
    else:
        await_words("interrupted", [0])
        dist.all_reduce(x)
    y = torch.ones(1)
    dist.all_reduce(y)
    assert (x.tolist(), y.item()) == ([3.0] * 10, 2.0), (x, y)


def busy(rank, size):
    """Handlers that do not raise, beside a thread that uses the same engine: neither lock waits for the other."""
    others = dist.new_group()
    calls = []
    signal.signal(signal.SIGUSR1, lambda *_: calls.append(time.monotonic()))
    failures = []

    def hammer():
        try:
            for _ in range(600):
                value = torch.ones(100)
                dist.all_reduce(value, group=others)
                assert value[0].item() == size
        except BaseException as error:  # noqa: BLE001
            failures.append(error)
        if rank == 1:
            dist.barrier()

    met(size)
    thread = threading.Thread(target=hammer)
    thread.start()
    if rank == 0:
        main, done = os.getpid(), threading.Event()

        def signals():
            while not done.wait(0.02):
                os.kill(main, signal.SIGUSR1)

        sender = threading.Thread(target=signals)
        sender.start()
        begin = time.monotonic()
        dist.barrier()
        waited = time.monotonic() - begin
        done.set()
        sender.join()
        assert len(calls) >= min(3, waited / 0.2), (len(calls), waited)
    thread.join()
    assert not failures, failures


class Signals(unittest.TestCase):
    def test_an_interrupted_wait(self):
        for blocking in (True, False):
            for at_a_prompt in (True, False):
                with self.subTest(blocking=blocking, at_a_prompt=at_a_prompt):
                    self.assertEqual(on_ranks(2, interrupted, blocking, at_a_prompt), [0, 0])

    def test_between_hosts(self):
        self.assertEqual(on_ranks(2, interrupted, True, True, hosts=2), [0, 0])

    def test_handlers_beside_a_busy_thread(self):
        self.assertEqual(on_ranks(2, busy), [0, 0])


if __name__ == "__main__":
    unittest.main()
