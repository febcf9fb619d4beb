"""The c10d backend "shoal": collectives over memory that the ranks of a node all see, and over TCP between nodes.

    import shoal
    torch.distributed.init_process_group("shoal")

The first group installs Shoal's arena as PyTorch's CPU allocator, so that every later CPU tensor can be read in place by the other ranks.
`python -m shoal.run script.py` starts a program on several ranks, `shoal.launch(function, nproc=4)` a function.
"""
import sys

from shoal._launch import LaunchError, launch

__all__ = ["ElasticGroup", "ElasticStep", "ElasticView", "LaunchError", "Options", "in_arena", "install_arena", "join_token", "launch", "memory", "report"]


def _is_launcher():
    """Is this package imported for `python -m shoal.run`? Its ranks import PyTorch, which takes seconds; it does not."""
    # Python imports the package of a module that -m names before it sets sys.argv[0].
    return sys.argv[:1] == ["-m"] and any(word in ("shoal.run", "-mshoal.run") for word in sys.orig_argv)


if not _is_launcher():
    from shoal._backend import Options, _c10d, in_arena, install_arena, memory, report
    from shoal._elastic import ElasticGroup, ElasticStep, ElasticView, join_token
