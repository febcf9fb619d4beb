"""Runs a function on several ranks that form a process group of backend "shoal"."""
import datetime
import functools
import itertools
import multiprocessing
import os
import sys
import time
import traceback

import torch
import torch.distributed as dist

import shoal

_calls = itertools.count()  # the keys of each call of on_ranks have a prefix of their own


def _rank_main(body, rank, size, port, call, timeout_s, environment, options, arguments):
    os.environ.update(environment, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    timeout = datetime.timedelta(seconds=timeout_s)
    try:
        store = dist.PrefixStore(str(call), dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout))
        given = shoal.Options(**options) if options else None
        dist.init_process_group("shoal", store=store, rank=rank, world_size=size, timeout=timeout, pg_options=given)
        body(rank, size, *arguments)
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:  # noqa: BLE001  the parent sees the exit code, people the trace
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()


def _serve(pipe):
    """A store of its own process: one that has threads must not fork ranks."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    parent = os.getppid()
    pipe.send(server.port)
    while os.getppid() == parent:  # the tests may be killed
        time.sleep(1)


@functools.cache
def _store_port():
    """One store serves all tests of this process, and ends with it."""
    context = multiprocessing.get_context("fork")
    pipe, theirs = context.Pipe()
    context.Process(target=_serve, args=(theirs,), daemon=True).start()
    if not pipe.poll(120):
        raise AssertionError("the store's process says nothing")
    return pipe.recv()


def played_hosts(count, rank, size):
    """The environment of a rank that plays to be on one of `count` hosts with equal blocks of ranks, which are connected over loopback."""
    return {"SHOAL_HOST": str(rank * count // size), "SHOAL_INTERFACE": "lo"}


def store():
    """The store that all ranks share."""
    return dist.distributed_c10d._get_default_store()


def say(word):
    """Lets those ranks go on that wait for this word of the caller's in await_words()."""
    store().set(f"{word} {dist.get_rank()}", "")


def await_words(word, ranks):
    """Returns when each of `ranks` has said the word: until then the caller is no part of any operation."""
    store().wait([f"{word} {rank}" for rank in ranks], datetime.timedelta(seconds=60))


def met(size):
    """Returns when all have called it. After a barrier of the group some are still in it, and what then breaks the group breaks their barrier."""
    say("met")
    await_words("met", range(size))


def hurry(seconds):
    """From now on this rank's operations in the world's group have this limit. The meeting keeps the long one: on a busy machine a rank starts late."""
    dist.group.WORLD.set_timeout(datetime.timedelta(seconds=seconds))


def on_ranks(size, body, *arguments, timeout_s=60, limit_s=120, method="fork", environment=(),
             flight_directory=None, hosts=None, options=(), stops=None, own=None):
    """Exit codes of `size` processes that each ran body(rank, size, *arguments); 124 for one that had to be killed after `limit_s`. `hosts`: how many
    they play. `options`: of shoal.Options. `own`: the environment of each rank, beside `environment`. `stops`: the rank that stops itself, which is killed
    when the others have ended. They meet through a TCPStore. (Through a FileStore about one group in a hundred hung: in PyTorch 2.11 a rank that
    destroys the store while the last one deletes its file reads that file for ever.)"""
    context = multiprocessing.get_context(method)
    options = dict(options, **({"flight_directory": flight_directory} if flight_directory else {}))
    words = [dict(environment, **(played_hosts(hosts, rank, size) if hosts else {}), **(own[rank] if own else {})) for rank in range(size)]
    port, call = _store_port(), next(_calls)
    ranks = [context.Process(target=_rank_main, args=(body, rank, size, port, call, timeout_s, words[rank], options, arguments))
             for rank in range(size)]
    for process in ranks:
        process.start()
    end = time.monotonic() + limit_s
    codes = [None] * size
    for rank in sorted(range(size), key=lambda rank: rank == stops):
        process = ranks[rank]
        process.join(0 if rank == stops else max(0.0, end - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
            codes[rank] = 124
        else:
            codes[rank] = process.exitcode
    return codes
