"""An ordinary program that knows nothing of Shoal and asks PyTorch for Gloo in every way there is. Prints what it was given, one JSON line a rank."""
import json
import subprocess
import sys
import unittest.mock
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

warnings.simplefilter("error")  # PyTorch warns of groups without a default backend


def seen(group=None):
    """The backend of a group as the program is told, as it is, and the sum of rank + 1 over its ranks."""
    group = group or dist.group.WORLD
    value = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(value, group=group)
    return [str(dist.get_backend(group)), group._get_backend(torch.device("cpu")).name(), value.item()]


def start_again(*backend):
    """One more default group. Its keys have a store of their own: through the first group's a fast rank would read what is left of that group."""
    dist.init_process_group(*backend, store=dist.PrefixStore(f"{backend}", store), rank=rank, world_size=size)


found = {}
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()
found["named"] = seen()
found["config"] = dist.get_backend_config()
found["new_group"] = seen(dist.new_group(backend="gloo"))
found["inherited"] = seen(dist.new_group())
pair = dist.new_group([0, 1], backend=dist.Backend.GLOO, pg_options=dist.ProcessGroupGloo._Options())
found["pair"] = seen(pair) if rank < 2 else None
found["mesh"] = seen(init_device_mesh("cpu", (size,)).get_group())
dist.monitored_barrier()  # PyTorch allows it to programs on Gloo alone
dist.destroy_process_group()

start_again()
found["unnamed"] = seen()
dist.destroy_process_group()

# On a machine with GPUs Gloo also serves their tensors, and goes on to.
with unittest.mock.patch("torch.cuda.is_available", return_value=True):
    for name in ("gloo", "cpu:gloo,cuda:gloo"):
        start_again(name)
        found[name] = [*seen(), dist.group.WORLD._get_backend(torch.device("cuda")).name()]
        dist.destroy_process_group()

if rank == 0:
    child = ("import torch.distributed as dist, torch\n"
             "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
             "print(dist.group.WORLD._get_backend(torch.device('cpu')).name())")
    found["child"] = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, timeout=60).stdout.strip()
print(json.dumps({"rank": rank, "threads": torch.get_num_threads(), "arguments": sys.argv[1:], **found}))
