from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.distributed import ProcessGroup

__all__ = ["ElasticGroup", "ElasticStep", "ElasticView", "LaunchError", "Options", "in_arena", "install_arena", "join_token", "launch", "memory", "report"]

Result = TypeVar("Result")

class Options:
    """The pg_options of init_process_group("shoal"). Empty: what the environment says, else Shoal chooses."""

    def __init__(self, *, flight_directory: str = "", transport: str = "", interface: str = "", ports: str = "", advertise: str = "",
                 rails: str = "", silence_s: str = "", tls: str = "", routes: str = "", job_key: str = "", host: str = "", in_rank_order: bool = False) -> None: ...
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
    def advertise(self) -> str:
        """ "203.0.113.7": where others reach this rank behind an address translator."""
    @property
    def rails(self) -> str:
        """ "4": connections between two ranks over TCP."""
    @property
    def silence_s(self) -> str:
        """ "30": seconds after which a rank is lost over TCP from which nothing comes."""
    @property
    def tls(self) -> str:
        """ "auto", "on" or "off": connections over TCP that are encrypted; auto: those that leave the host."""
    @property
    def routes(self) -> str:
        """ "natural" or "measured": whether ranks that are far apart measure the links between them, over TCP."""
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

class ElasticView:
    """The members of one attempt at a step and their collectives, which can be called until the attempt ends.

    Collectives take contiguous tensors in host memory. They raise RuntimeError when a member is lost, which the attempt lets pass.
    """

    @property
    def members(self) -> list[str]:
        """Their ids, by rank."""
    @property
    def epoch(self) -> int:
        """Counts the views."""
    @property
    def rank(self) -> int:
        """Of this member."""
    @property
    def size(self) -> int:
        """Number of members."""
    @property
    def step(self) -> int: ...
    @property
    def samples(self) -> int:
        """Of all steps before."""
    @property
    def attempt(self) -> int:
        """Counts the attempts of this member at this step, from 1."""
    def all_reduce(self, tensor: torch.Tensor) -> None:
        """The sum over all members, in place, added in the order of ranks."""
    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """The tensor of rank `root`, in place."""
    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> None:
        """`output` gets the inputs of all members, in the order of ranks: `size` times as many elements."""

class ElasticStep:
    """A step that is committed."""

    @property
    def members(self) -> list[str]:
        """The ids of those that took part, by rank."""
    @property
    def epoch(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def first_sample(self) -> int:
        """Samples of all steps before."""
    @property
    def samples(self) -> int:
        """Samples of this step, from all members."""
    @property
    def state(self) -> str:
        """SHA-256 of the state that it led to."""
    @property
    def attempts(self) -> int: ...

class ElasticGroup:
    """Processes that train together, join, leave and may die. What one of them does in a step becomes true on all or on none.

    `state` maps names to all tensors that a step changes, contiguous and in host memory. Without `join` ("HOST:PORT" of members) this
    member begins a group with them; with it they are overwritten by the group's. `key` is a secret that all members know. `listen`, `ports`
    ("7000-7100") and `advertise`: where the others reach this one. With an `admission_secret` of the member that begins the group, others join
    with a `token` of join_token(). A member that is silent for `suspect_after_s` is taken for dead.
    `on_fault` is told, as text, of each failure that the group lives through. docs/concepts/elastic.md says what is promised.
    """

    def __init__(self, state: Mapping[str, torch.Tensor], *, key: str, join: Sequence[str] = (), listen: str = "127.0.0.1", ports: str = "",
                 advertise: Sequence[str] = (), tls: str = "auto", cluster: str = "shoal", admission_secret: str = "",
                 token: str = "", suspect_after_s: float = 2.0, meeting_timeout_s: float = 60.0, step_timeout_s: float = 1800.0,
                 on_fault: Callable[[str], Any] | None = None) -> None: ...
    @property
    def id(self) -> str:
        """Of this member; it is made anew for each process."""
    @property
    def endpoint(self) -> str:
        """ "HOST:PORT" at which this member listens."""
    @property
    def members(self) -> list[str]:
        """Ids of those that the next attempt is made with, as far as this member knows."""
    @property
    def next_step(self) -> int: ...
    @property
    def samples(self) -> int:
        """Of all committed steps."""
    def wait_for_members(self, members: int, timeout_s: float = 1800.0) -> None:
        """Waits until there are so many, and lets them join meanwhile. RuntimeError when the time is over."""
    def step(self, attempt: Callable[[ElasticView], tuple[Mapping[str, torch.Tensor], int]]) -> ElasticStep:
        """Makes the next step with all members.

        `attempt(view)` computes it and returns the tensors that the state would become, with the number of samples that this member has used.
        It changes no tensor of the state, and is called again when a member was lost. When all members have come to the same tensors, bit
        for bit, and that is decided, they are copied into the state. An exception of `attempt` is raised here, and all members attempt
        the step again.
        """
    def leave(self, timeout_s: float = 30.0) -> bool:
        """Leaves in order: the others go on without delay. False where they have not agreed in time. The group is of no more use."""

def join_token(secret: str, good_for_s: float, cluster: str = "shoal") -> str:
    """A token that admits one process, once, to a group that was begun with this admission_secret."""
