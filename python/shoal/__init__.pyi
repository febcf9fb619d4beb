from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.distributed import ProcessGroup

__all__ = ["LaunchError", "Options", "in_arena", "install_arena", "launch", "memory", "report"]

Result = TypeVar("Result")

class Options:
    """The pg_options of init_process_group("shoal"). Empty: what the environment says, else Shoal chooses."""

    def __init__(self, *, flight_directory: str = "", transport: str = "", interface: str = "", ports: str = "", rails: str = "",
                 tls: str = "", job_key: str = "", host: str = "", in_rank_order: bool = False) -> None: ...
    @property
    def flight_directory(self) -> str:
        """The folder in which ranks write what they were doing when a collective fails."""
    @property
    def transport(self) -> str:
        """ "auto", or "tcp" to share no memory."""
    @property
    def interface(self) -> str:
        """Name or prefix of the address on which this rank listens."""
    @property
    def ports(self) -> str:
        """ "7000-7100": the first free one of them."""
    @property
    def rails(self) -> str:
        """ "4": connections between two ranks over TCP."""
    @property
    def tls(self) -> str:
        """ "auto", "on" or "off": connections over TCP that are encrypted; auto: those that leave the host."""
    @property
    def job_key(self) -> str:
        """A secret that all ranks know, beside what rank 0 puts into PyTorch's store."""
    @property
    def host(self) -> str:
        """Ranks that name different hosts share no memory."""
    @property
    def in_rank_order(self) -> bool:
        """Sums are taken in the order of ranks."""

class LaunchError(RuntimeError):
    """A rank of launch() failed: the first of them."""

    rank: int
    code: int
    trace: str

    def __init__(self, text: str, rank: int, code: int, trace: str) -> None: ...

def launch(function: Callable[..., Result], args: Sequence[Any] = (), *, nproc: int | None = None, timeout_s: float | None = None,
           grace_s: float = 10.0) -> list[Result]:
    """Calls function(*args) on `nproc` ranks and returns their results, in the order of the ranks."""

def install_arena(ranks_on_host: int = 1) -> None:
    """Installs the arena before the first group, so that tensors made earlier are visible to the other ranks too."""

def in_arena(tensor: torch.Tensor) -> bool:
    """Can the other ranks read it in place?"""

def memory() -> str:
    """What the arena holds, by purpose, and its limit: for people."""

def report(group: ProcessGroup | None = None) -> str:
    """How far each rank of the group has come: for people, when something hangs."""
