"""What processes take of the memory of the host: the sum of their proportional set sizes, in which memory that several share counts once."""
import pathlib
import threading

INTERVAL_S = 0.1


def proportional_bytes(pid):
    """Of one process; 0 when it has ended."""
    try:
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    except (OSError, ProcessLookupError):
        pass
    return 0


def family(pid):
    """A process and those it started."""
    members = [pid]
    for member in members:
        try:
            for children in pathlib.Path(f"/proc/{member}/task").glob("*/children"):
                members += map(int, children.read_text().split())
        except OSError:
            pass
    return members


class PeakMemory:
    """Samples `pids` and what they start, from `watch` until the end of the `with` block. `bytes`: the most that all took at once."""

    def __init__(self):
        self.bytes = 0
        self._ended = threading.Event()
        self._thread = None

    def watch(self, pids):
        self._thread = threading.Thread(target=self._sample, args=(list(pids),))
        self._thread.start()

    def _sample(self, pids):
        while not self._ended.wait(INTERVAL_S):
            self.bytes = max(self.bytes, sum(proportional_bytes(member) for pid in pids for member in family(pid)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ended.set()
        if self._thread:
            self._thread.join()
