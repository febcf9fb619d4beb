"""Registers the backend with PyTorch: what `import shoal` does."""
import atexit
import contextlib
import os

import torch
import torch.distributed as dist

from shoal import _built_for

# c10d's C++ interface changes with every version: what was built for another one would not fail here but anywhere.
if torch.__version__.split("+")[0].split(".")[:2] != _built_for.TORCH.split("."):
    raise ImportError(f"this shoal was built for PyTorch {_built_for.TORCH} and this is {torch.__version__}; build it anew, in Shoal's folder: "
                      "pip install --no-build-isolation ./python")

from shoal import _c10d, _first_cause
from shoal._c10d import Options, error, fail, in_arena, install_arena, memory


def _backend_of(group):
    backend = group._get_backend(torch.device("cpu"))
    return getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checking backend in front


def _with_environment(options):
    """The options, with those that are empty taken from the environment: SHOAL_TRANSPORT, SHOAL_INTERFACE, SHOAL_PORTS, SHOAL_ADVERTISE, SHOAL_RAILS, SHOAL_SILENCE_S, SHOAL_TLS, SHOAL_ROUTES, SHOAL_JOB_KEY, SHOAL_HOST."""
    network = {name: getattr(options, name) or os.environ.get("SHOAL_" + name.upper(), "") for name in ("transport", "interface", "ports", "advertise", "rails", "silence_s", "tls", "routes", "job_key", "host")}
    return Options(flight_directory=options.flight_directory, in_rank_order=options.in_rank_order, **network)


_takes_any_options = False


@contextlib.contextmanager
def options_of_any_backend():
    """Inside it, pg_options of another backend are ignored."""
    global _takes_any_options
    before, _takes_any_options = _takes_any_options, True
    try:
        yield
    finally:
        _takes_any_options = before


def _create(options, backend_options=None):
    own = Options() if backend_options is None else backend_options
    if not isinstance(own, Options) and _takes_any_options:
        own = Options()
    if not isinstance(own, Options):
        raise ValueError(f"shoal takes pg_options of type shoal.Options, not {type(own).__name__}; "
                         "the timeout is an argument of init_process_group and new_group")
    _first_cause.install()  # torchrun's summary then shows how this rank failed
    first = None
    if dist.is_initialized() and "cpu" in str(dist.distributed_c10d._world.pg_backend_config[dist.group.WORLD]):
        first = _backend_of(dist.group.WORLD)
    if first is not None:
        job = _c10d.options(first)
        for name in ("flight_directory", "transport", "interface", "ports", "advertise", "rails", "silence_s", "tls", "routes", "job_key", "host", "in_rank_order"):
            if getattr(own, name) and getattr(own, name) != getattr(job, name):
                raise ValueError(f"{name} is that of the whole job: name it in the pg_options of init_process_group")
    return _c10d.create(options.store, options.group_rank, options.group_size, options.timeout, options.global_ranks_in_group, first,
                        _with_environment(own) if first is None else own)


def own_backends():
    """The backend of each group of this process that is Shoal's."""
    found = []
    for group in list(dist.distributed_c10d._world.pg_map):
        try:
            backend = _backend_of(group)
        except RuntimeError:  # it has none for CPU tensors
            continue
        if backend.name() == "shoal":
            found.append(backend)
    return found


def _leave(process):
    """Makes a program that ends without destroy_process_group leave in good order: what the other ranks do without it goes on."""
    if os.getpid() != process or not dist.is_initialized():
        return
    for backend in own_backends():
        backend.shutdown()


def report(group=None):
    """How far each rank of the group has come: for people, when something hangs."""
    return _c10d.report(_backend_of(group or dist.group.WORLD))


dist.Backend.register_backend("shoal", _create, extended_api=True, devices=["cpu"])
atexit.register(_leave, os.getpid())
