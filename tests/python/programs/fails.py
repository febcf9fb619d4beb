"""Rank 1 of a program on Gloo fails in the way that the first argument names, while the others wait for it."""
import os
import signal
import sys
import time

import torch
import torch.distributed as dist


def step(rank, number):
    if rank == 1 and number == 3:
        print(f"the end {time.time()}", flush=True)
        if sys.argv[1] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("the data is empty")
    dist.all_reduce(torch.ones(1000))


dist.init_process_group("gloo")
for number in range(1000):
    step(dist.get_rank(), number)
