"""Runs a function on several ranks that form a process group of backend "shoal"."""
import datetime
import multiprocessing
import os
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

import shoal


def _rank_main(body, rank, size, path, timeout_s, environment, flight_directory, arguments):
    os.environ.update(environment, RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    try:
        options = shoal.Options(flight_directory=flight_directory) if flight_directory else None
        dist.init_process_group("shoal", init_method=f"file://{path}", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=timeout_s),
                                pg_options=options)
        body(rank, size, *arguments)
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:  # noqa: BLE001  the parent sees the exit code, people the trace
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()


def on_ranks(size, body, *arguments, timeout_s=60, limit_s=120, method="fork", environment=(), flight_directory=None):
    """Exit codes of `size` processes that each ran body(rank, size, *arguments); 124 for one that had to be killed after `limit_s`."""
    context = multiprocessing.get_context(method)
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=_rank_main, args=(body, rank, size, folder + "/store", timeout_s, dict(environment), flight_directory, arguments))
                 for rank in range(size)]
        for process in ranks:
            process.start()
        end = time.monotonic() + limit_s
        codes = []
        for process in ranks:
            process.join(max(0.0, end - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
                codes.append(124)
            else:
                codes.append(process.exitcode)
        return codes
