"""For the programs of this folder: how long steps take, and a step in which rank 1 ends."""
import os
import signal
import statistics
import sys
import time

WARM_UP = 5


class StepWatch:
    """`begin()` opens each step."""

    def __init__(self):
        self.begins = []
        self.ending = sys.argv[-1] if sys.argv[-1] in ("kill", "raise") else None
        self.left = None

    def trains_again(self):
        """Whether the program trains once more, which it does where its last argument is "kill" or "raise": rank 1 ends so as the fourth step begins."""
        self.left = 4
        return self.ending is not None

    def begin(self):
        self.begins.append(time.perf_counter())
        if self.left is None or os.environ["RANK"] != "1":
            return
        self.left -= 1
        if self.left == 0:
            print(f"the end {time.time()}", flush=True)
            if self.ending == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("the data is empty")

    def ms(self):
        """Median of the steps but for the first ones and the last, of which nobody saw the end."""
        times = [1000 * (after - before) for before, after in zip(self.begins, self.begins[1:])]
        return statistics.median(times[WARM_UP:])


def steps(default):
    """How many steps the program takes: its first argument, where that is a number."""
    return int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else default
