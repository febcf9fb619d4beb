"""Starts the ranks of this node, watches them, and says which failed first and why.

Nothing here needs PyTorch. Every rank has a process group of its own: what it starts ends with it. A rank that fails ends the others: they have
a moment to report what they saw, are then asked to end (SIGTERM) and are killed after `grace_s`. Should this process die, a guard kills the ranks.
"""
import contextlib
import dataclasses
import os
import selectors
import signal
import site
import socket
import subprocess
import sys
import tempfile
import time

from shoal import _first_cause
from shoal._output import Lines

ASK_AFTER_S = 1.0  # the other ranks notice a failure within half a second and write their reports
DRAIN_S = 1.0
POLL_S = 0.1

# The guard reads "+PID" when a rank has started and "-PID" when it has ended. The end of its input says that the launcher is gone.
GUARD = """
import os, signal
groups = set()
for line in open(0, "rb", 0):
    (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


@dataclasses.dataclass
class Place:
    """Which ranks of the job are this node's: `first` and the following `count`, of `world`."""
    count: int
    first: int = 0
    world: int = 0
    local_first: int = 0  # where several launchers share a node
    local_world: int = 0
    node: int = 0
    nodes: int = 1
    address: str = "127.0.0.1"
    port: int = 0

    def __post_init__(self):
        self.world = self.world or self.count
        self.local_world = self.local_world or self.count


def counted(number, noun):
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"


def usable_cores():
    return len(os.sched_getaffinity(0))


def default_threads(place):
    """Threads of each rank, unless the user has chosen."""
    # Where several launchers share a node, each is mostly bound to cores of its own; one that may use all cores is not.
    shared = usable_cores() == os.cpu_count()
    return max(1, usable_cores() // (place.local_world if shared else place.count))


def reserve_port():
    """A free port, and the socket that keeps it for rank 0: nobody else is given a port that is bound, yet rank 0 may listen on it."""
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("", 0))
    return reservation.getsockname()[1], reservation


def _import_path():
    """PYTHONPATH for the ranks: they must find this package, also where it is not installed."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    found = [os.path.realpath(path) for path in [*paths, *site.getsitepackages(), site.getusersitepackages()]]
    return os.pathsep.join(paths if os.path.realpath(folder) in found else [*paths, folder])


def environment(place, index, error_file, replaces_gloo=True):
    """What torchrun tells a rank, for the `index`-th of this launcher's."""
    rank = place.first + index
    own = {"RANK": rank, "WORLD_SIZE": place.world, "LOCAL_RANK": place.local_first + index, "LOCAL_WORLD_SIZE": place.local_world,
           "GROUP_RANK": place.node, "GROUP_WORLD_SIZE": place.nodes, "ROLE_NAME": "default", "ROLE_RANK": rank, "ROLE_WORLD_SIZE": place.world,
           "MASTER_ADDR": place.address, "MASTER_PORT": place.port, "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0,
           "TORCHELASTIC_RUN_ID": "shoal", "TORCHELASTIC_USE_AGENT_STORE": False, "TORCHELASTIC_ERROR_FILE": error_file,
           "SHOAL_REPLACE_GLOO": int(replaces_gloo), "SHOAL_LAUNCHER": os.getpid(), "PYTHONUNBUFFERED": 1,
           "PYTHONPATH": _import_path()}
    result = {**os.environ, **{name: str(value) for name, value in own.items()}}
    result.setdefault("OMP_NUM_THREADS", str(default_threads(place)))
    return result


class Rank:
    """One process, its output and its end."""

    def __init__(self, number, process, error_file, out, err):
        self.number, self.process, self.error_file, self.out, self.err = number, process, error_file, out, err
        self.descriptor = os.pidfd_open(process.pid)
        self.code = None  # as of subprocess: -n where signal n killed it
        self.ended_ns = 0
        self.ended_by_launcher = False

    def signal(self, number, group=False):
        """Sends a signal to the rank, or with `group` to all that it has started too."""
        if self.code is None:
            # A signal handler may come between the end of the rank's process and the note of it.
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(self.process.pid, number)

    def reap(self):
        """Returns true when the rank has ended, and then ends what it has left behind."""
        # WNOWAIT leaves it a zombie, so that no other process can have its number before its group is killed.
        if self.code is None and os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self.signal(signal.SIGKILL, group=True)
            self.code = self.process.wait()
            self.ended_ns = time.monotonic_ns()
            os.close(self.descriptor)
        return self.code is not None

    def failed(self):
        return self.code not in (None, 0) and not self.ended_by_launcher

    def report(self):
        return _first_cause.read(self.error_file)


def ending(code):
    """Exit code of a shell for an exit code of subprocess."""
    return 128 - code if code < 0 else code


def signal_name(number):
    try:
        return f"signal {number} ({signal.strsignal(number)})"
    except ValueError:
        return f"signal {number}"


class Failure:
    """The rank that failed first, and how."""

    def __init__(self, rank, world):
        report = rank.report() if rank.code is None or rank.code >= 0 else None
        self.rank, self.code = rank.number, ending(rank.code if rank.code is not None else 1)
        self.trace = report.trace if report else ""
        if rank.code is not None and rank.code < 0:
            self.how = f"was killed by {signal_name(-rank.code)}"
        elif report:
            self.how = f"failed{' at ' + report.place if report.place else ''}: {report.text}"
        else:
            words = rank.err.last_words()
            self.how = f"ended with code {rank.code}" + (f": {words}" if words else " and left no error report")
        self.text = f"rank {rank.number} of {world} {self.how}"


class Ranks:
    """The ranks of this launcher.

    `command(index)` is the command line of the `index`-th; `environment(index, error_file)` its environment. `write_out` and `write_err` take their
    lines; `say` takes what the launcher itself has to say, as text.
    """

    def __init__(self, place, command, environment, write_out, write_err, say, grace_s=10.0, reads_input=True):
        self.place, self.say, self.grace_s, self.reads_input = place, say, grace_s, reads_input
        self.ranks, self.guard = [], None
        self.selector = selectors.DefaultSelector()
        self.first = None  # the Failure
        self.failed_at = self.stopped_at = None
        self.stop_signal = 0
        self.asked = False
        self.timed_out = []  # the ranks that had not ended
        self.folder = tempfile.TemporaryDirectory(prefix="shoal-run-")
        try:
            self.guard = subprocess.Popen([sys.executable, "-I", "-S", "-c", GUARD], stdin=subprocess.PIPE, bufsize=0, start_new_session=True,
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for index in range(place.count):
                self._start(index, command, environment, write_out, write_err)
        except BaseException:
            self.close()
            raise

    def _start(self, index, command, environment, write_out, write_err):
        number = self.place.first + index
        error_file = os.path.join(self.folder.name, f"rank-{number}.json")
        # Standard input is for one: the first rank, and not from a terminal, of which ranks are in the background.
        stdin = None if self.reads_input and index == 0 and not os.isatty(0) else subprocess.DEVNULL
        process = subprocess.Popen(command(index), env=environment(index, error_file), stdin=stdin, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, start_new_session=True)
        self._tell_guard(b"+%d\n" % process.pid)
        rank = Rank(number, process, error_file, Lines(f"[{number}] ", write_out), Lines(f"[{number}] ", write_err))
        self.ranks.append(rank)
        self.selector.register(rank.descriptor, selectors.EVENT_READ, None)
        for pipe, lines in ((process.stdout, rank.out), (process.stderr, rank.err)):
            os.set_blocking(pipe.fileno(), False)
            self.selector.register(pipe, selectors.EVENT_READ, lines)

    def _tell_guard(self, text):
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it: the job goes on without
            self.guard.stdin.write(text)

    def _forward(self, timeout_s):
        """Waits for output or for the end of a rank, and passes on what there is."""
        for key, _ in self.selector.select(timeout_s):
            if key.data is None:
                continue
            try:
                data = os.read(key.fd, 1 << 16)
            except BlockingIOError:
                continue
            if data:
                key.data.feed(data)
            else:
                self.selector.unregister(key.fileobj)

    def _living(self):
        return [rank for rank in self.ranks if rank.code is None]

    def stop(self, number):
        """Passes a signal on that asks the job to end; the second time it kills. May be called by a signal handler."""
        if self.stopped_at is None:
            self.stopped_at, self.stop_signal = time.monotonic(), number
            for rank in self._living():
                rank.signal(number)
        else:
            self._kill()

    def pass_on(self, number):
        """Passes on a signal that means something to the program alone."""
        for rank in self._living():
            rank.signal(number)

    def _kill(self):
        for rank in self._living():
            rank.ended_by_launcher = True
            rank.signal(signal.SIGKILL, group=True)

    def run(self, limit_s=None):
        """Returns the exit code when all have ended: that of the rank that failed first; 128 + n where signal n asked the job to stop. After
        `limit_s` those that have not ended are killed."""
        end = None if limit_s is None else time.monotonic() + limit_s
        while self._living():
            if end is not None and time.monotonic() > end and not self.timed_out:
                self.timed_out = [rank.number for rank in self._living()]  # not empty
                self._kill()
            self._forward(POLL_S)
            for rank in self._living():
                if rank.reap():
                    self.selector.unregister(rank.descriptor)
                    self._tell_guard(b"-%d\n" % rank.process.pid)
                    if rank.failed() and self.stopped_at is None and self.failed_at is None:
                        self.failed_at = time.monotonic()
            self._after_a_failure()
            if self.stopped_at is not None and time.monotonic() - self.stopped_at > self.grace_s:
                self._kill()
        # The pipes are the ranks' alone, which are gone, or those of processes that have left their group.
        deadline = time.monotonic() + DRAIN_S
        while self.selector.get_map() and time.monotonic() < deadline:
            self._forward(deadline - time.monotonic())
        for rank in self.ranks:
            rank.out.close()
            rank.err.close()
        if self.failed_at is not None:
            self._name_the_first()
            return self.first.code
        if self.stopped_at is not None:
            return 128 + self.stop_signal
        return 0

    def _after_a_failure(self):
        if self.failed_at is None:
            return
        since = time.monotonic() - self.failed_at
        # Nobody's failure makes another rank be killed: that is the cause. An exception may be an echo of one that is still being reported.
        if since > ASK_AFTER_S or any(rank.failed() and rank.code < 0 for rank in self.ranks):
            self._name_the_first()
        if since > ASK_AFTER_S and not self.asked:
            self.asked = True
            for rank in self._living():
                rank.ended_by_launcher = True
                rank.signal(signal.SIGTERM)
        if since > ASK_AFTER_S + self.grace_s:
            self._kill()

    def _name_the_first(self):
        if self.first:
            return

        def order(rank):
            killed = rank.code is not None and rank.code < 0
            report = None if killed else rank.report()
            return (report.echo if report else False), (report.time_ns if report else rank.ended_ns)

        # A rank that has written its report may still be on its way out.
        failed = sorted((rank for rank in self.ranks if rank.failed() or (rank.code is None and rank.report())), key=order)
        self.first = Failure(failed[0], self.place.world)
        self.say(self.first.text)
        same = sorted(rank.number for rank in failed[1:] if Failure(rank, self.place.world).how == self.first.how)
        if same:
            self.say(f"rank{'s' if len(same) > 1 else ''} {', '.join(map(str, same))} failed in the same way")

    def close(self):
        """Ends every rank, whatever happened."""
        self._kill()
        for rank in self._living():
            rank.code = rank.process.wait()
        for rank in self.ranks:
            rank.process.stdout.close()
            rank.process.stderr.close()
        if self.guard:
            self.guard.stdin.close()
            try:
                self.guard.wait(DRAIN_S)
            except subprocess.TimeoutExpired:  # somebody has stopped it
                self.guard.kill()
                self.guard.wait()
        self.selector.close()
        self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
