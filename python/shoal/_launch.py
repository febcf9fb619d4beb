"""shoal.launch: a function on several ranks, for notebooks and scripts."""
import importlib.util
import os
import pickle
import sys
import tempfile

from shoal._ranks import Place, Ranks, counted, environment, reserve_port, usable_cores


class LaunchError(RuntimeError):
    """A rank of shoal.launch failed: the first of them, its words and its traceback.

    `rank` is its number, `trace` its traceback as text (empty where a signal killed it), `code` its exit code as a shell would see it.
    """

    def __init__(self, text, rank, code, trace):
        super().__init__(f"{text}\n\n{trace.rstrip()}" if trace else text)
        self.rank, self.code, self.trace = rank, code, trace


def dumps(value):
    """Pickles a value. Functions and classes of a notebook, lambdas and closures need cloudpickle."""
    if importlib.util.find_spec("cloudpickle"):
        import cloudpickle
        return cloudpickle.dumps(value)
    try:
        return pickle.dumps(value)
    except (pickle.PicklingError, AttributeError) as error:
        raise TypeError(f"{error}: pip install cloudpickle lets shoal.launch send it") from None


def _main_script(function):
    """The script that a rank must import to know `function`, which Python calls __main__; None where it need not, or cannot."""
    if importlib.util.find_spec("cloudpickle") or getattr(function, "__module__", None) != "__main__":
        return None
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None or not os.path.exists(path):
        raise TypeError("a function that is defined in a notebook or at a prompt needs cloudpickle: pip install cloudpickle")
    return os.path.abspath(path)


def _write_to(stream):
    def write(data):
        stream.write(data.decode(errors="replace"))
        stream.flush()

    return write


def launch(function, args=(), *, nproc=None, timeout_s=None, grace_s=10.0):
    """Calls function(*args) on `nproc` ranks and returns their results, in the order of the ranks.

    Each rank is a process of its own with the variables that torchrun sets; Shoal is its CPU backend wherever the function asks for Gloo. The
    function makes the process group itself (`dist.init_process_group()`); what is left of it is destroyed when it returns. Function, arguments and
    results are pickled. What ranks print appears with the rank's number in front.

    nproc: without it as many as there are cores. timeout_s: None waits as long as it takes. grace_s: how long a rank that is asked to end because
    another has failed may take, before it is killed.

    Raises LaunchError with the first cause, TimeoutError after timeout_s, TypeError where something cannot be pickled.
    """
    count = usable_cores() if nproc is None else nproc
    if count < 1:
        raise ValueError(f"nproc must be at least 1, not {nproc}")
    script = _main_script(function)
    place = Place(count)
    place.port, reservation = reserve_port()
    with reservation, tempfile.TemporaryDirectory(prefix="shoal-launch-") as folder:
        with open(os.path.join(folder, "call"), "wb") as file:
            pickle.dump((script, sys.path), file)
            file.write(dumps((function, tuple(args))))
        words = [sys.executable, "-u", "-m", "shoal._call", folder]
        with Ranks(place, lambda _: words, lambda index, error_file: environment(place, index, error_file), _write_to(sys.stdout), _write_to(sys.stderr),
                   say=lambda _: None, grace_s=grace_s, reads_input=False) as ranks:
            code = ranks.run(timeout_s)
            if ranks.timed_out:
                raise TimeoutError(f"{counted(len(ranks.timed_out), 'rank')} of {count} had not returned after {timeout_s} s: "
                                   f"{', '.join(map(str, ranks.timed_out))}")
            if ranks.first:
                raise LaunchError(ranks.first.text, ranks.first.rank, code, ranks.first.trace)
        results = []
        for rank in range(count):
            try:
                with open(os.path.join(folder, f"result-{rank}"), "rb") as file:
                    results.append(pickle.load(file))
            except FileNotFoundError:
                raise LaunchError(f"rank {rank} of {count} ended without a result", rank, 0, "") from None
        return results
