"""The c10d backend "shoal": collectives among the ranks of one host over memory that they all see.

    import shoal
    torch.distributed.init_process_group("shoal")

The first group installs Shoal's arena as PyTorch's CPU allocator, so that every later CPU tensor can be read in place by the other ranks.
"""
import torch
import torch.distributed as dist

if torch.__version__.split("+")[0].split(".")[:2] != ["2", "11"]:
    raise ImportError(f"shoal is built for PyTorch 2.11 and this is {torch.__version__}: no other version is supported")

from shoal import _c10d
from shoal._c10d import Options, in_arena, install_arena, memory

__all__ = ["Options", "in_arena", "install_arena", "memory", "report"]


def _backend_of(group):
    backend = group._get_backend(torch.device("cpu"))
    return getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checking backend in front


def _create(options, backend_options=None):
    if backend_options is not None and not isinstance(backend_options, Options):
        raise ValueError(f"shoal takes pg_options of type shoal.Options, not {type(backend_options).__name__}; "
                         "the timeout is an argument of init_process_group and new_group")
    directory = backend_options.flight_directory if backend_options else ""
    first = None
    if dist.is_initialized() and "cpu" in str(dist.distributed_c10d._world.pg_backend_config[dist.group.WORLD]):
        first = _backend_of(dist.group.WORLD)
    if first is not None and directory and directory != _c10d.options(first).flight_directory:
        raise ValueError("flight_directory is that of the whole job: name it in the pg_options of init_process_group")
    return _c10d.create(options.store, options.group_rank, options.group_size, options.timeout, options.global_ranks_in_group, first, directory)


def report(group=None):
    """How far each rank of the group has come: for people, when something hangs."""
    return _c10d.report(_backend_of(group or dist.group.WORLD))


dist.Backend.register_backend("shoal", _create, extended_api=True, devices=["cpu"])
