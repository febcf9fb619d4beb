"""Makes Shoal the CPU backend wherever a program asks PyTorch for Gloo.

All groups of torch.distributed are made by one function, `_new_process_group_helper`: those of init_process_group, new_group and DeviceMesh, with
any spelling of the backend. It is wrapped, and asked for "shoal" where it would have made a Gloo backend for CPU tensors. What the program sees of
the group stays as it was: `get_backend()` still says "gloo", because programs compare it with that word. `get_backend_config()` says "cpu:shoal".
"""
import functools
import os
import sys

import torch
import torch.distributed as dist

from shoal import _backend, _first_cause
from shoal._ranks import counted

c10d = dist.distributed_c10d


def replacement(backend):
    """The backend to make in place of `backend`, as init_process_group takes it; None where that would not make Gloo for CPU tensors."""
    by_device = dict(c10d.BackendConfig(c10d.Backend(backend)).get_device_backend_map())
    if by_device.get("cpu") != c10d.Backend.GLOO:
        return None
    by_device["cpu"] = "shoal"
    # "gloo" alone also means CUDA tensors, which Gloo goes on to serve where there can be any.
    if by_device.get("cuda") == c10d.Backend.GLOO and not torch.cuda.is_available():
        del by_device["cuda"]
    if set(by_device) == {"cpu"}:
        return "shoal"
    return ",".join(f"{device}:{name}" for device, name in by_device.items())


@functools.cache
def _announce(asked, made, size):
    """Says once on stderr which backend is used."""
    print(f"shoal: the program asked for {asked}; its CPU collectives run on shoal ({made}, {counted(size, 'rank')})", file=sys.stderr, flush=True)


def install():
    """Wraps PyTorch's function, once per process."""
    helper = c10d._new_process_group_helper
    if hasattr(helper, "replaces_gloo"):
        return

    @functools.wraps(helper)
    def with_shoal(group_size, group_rank, global_ranks_in_group, backend, *arguments, **named):
        made = None if c10d._use_torchcomms_enabled() else replacement(backend)
        if made is None:
            return helper(group_size, group_rank, global_ranks_in_group, backend, *arguments, **named)
        with _backend.options_of_any_backend():  # Gloo ignores pg_options
            group, store = helper(group_size, group_rank, global_ranks_in_group, c10d.Backend(made), *arguments, **named)
        if group in c10d._world.pg_map:
            c10d._world.pg_map[group] = (backend, store)
            if made == "shoal" or "nccl" not in made:
                group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
        if not global_ranks_in_group and group_rank == 0:
            asked = "no backend" if backend == c10d.Backend.UNDEFINED else backend
            _announce(str(asked), c10d._world.pg_backend_config[group], group_size)
        return group, store

    with_shoal.replaces_gloo = True
    c10d._new_process_group_helper = with_shoal
    # A rank's own process reports failures from its first line on, not from its first group on. Processes that it starts are no ranks.
    if os.environ.get("SHOAL_LAUNCHER") == str(os.getppid()):
        _first_cause.install()
