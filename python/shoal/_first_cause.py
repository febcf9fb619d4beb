"""How a rank that fails says why, so that a launcher can tell the cause from its echoes.

A rank that ends by an exception of its own tells its peers, whose collectives then fail with these words. It writes the file that torchrun reads
(TORCHELASTIC_ERROR_FILE), in torchrun's format; what `python -m shoal.run` needs beyond that stands there too:

    {"message": {"message": "ValueError: ...", "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1700000000",
                 "shoal": {"echo": false, "time_ns": 123, "place": "train.py:17"}}}}

An echo is the failure of a rank that another rank's failure has caused. This module needs no PyTorch until an exception comes.
"""
import dataclasses
import json
import os
import sys
import sysconfig
import time
import traceback


@dataclasses.dataclass(frozen=True)
class Report:
    """What a failed rank wrote."""
    text: str  # "ValueError: the data is empty"
    place: str  # "train.py:17"; empty: unknown
    trace: str  # as Python prints it
    echo: bool
    time_ns: int  # time.monotonic_ns(): one clock for all processes of a node


def place_of(trace):
    """The last line of the traceback that is the user's own: neither Python's nor an installed package's."""
    frames = traceback.extract_tb(trace)
    libraries = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {os.path.dirname(__file__)})
    own = [frame for frame in frames if not frame.filename.startswith((*libraries, "<frozen")) and f"{os.sep}torch{os.sep}" not in frame.filename]
    chosen = (own or frames or [None])[-1]
    return f"{os.path.basename(chosen.filename)}:{chosen.lineno}" if chosen else ""


def words_of(kind, error):
    """The last line that Python prints of an exception."""
    return "".join(traceback.format_exception_only(kind, error)).strip().splitlines()[-1]


def write(path, kind, error, trace, echo):
    """Writes the report of an exception to `path`, whole or not at all."""
    # torchrun compares whole seconds and takes the earliest for the cause: an echo in the same second must not win.
    seconds = int(time.time()) + (1 if echo else 0)
    message = {"message": words_of(kind, error), "extraInfo": {
        "py_callstack": "".join(traceback.format_exception(kind, error, trace)), "timestamp": str(seconds),
        "shoal": {"echo": echo, "time_ns": time.monotonic_ns(), "place": place_of(trace)}}}
    partial = f"{path}.{os.getpid()}"
    with open(partial, "w") as file:
        json.dump({"message": message}, file)
    os.replace(partial, path)


def read(path):
    """The report of a rank; None where it has left none."""
    try:
        with open(path) as file:
            message = json.load(file)["message"]
        extra = message["extraInfo"]
        # A program that uses torchrun's own @record writes the file without our part.
        own = extra.get("shoal", {"echo": False, "time_ns": time.monotonic_ns(), "place": ""})
        return Report(message["message"], own["place"], extra["py_callstack"], own["echo"], own["time_ns"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _tell(kind, error, trace):
    """Tells the peers of this rank and its launcher."""
    dist = sys.modules.get("torch.distributed")
    shoal = sys.modules.get("shoal._backend")
    backends = shoal.own_backends() if shoal is not None and dist.is_initialized() else []
    failed = any(shoal.error(backend) != "success" for backend in backends)
    # PyTorch's store is served by one of the ranks: who cannot reach it any more has lost that rank.
    echo = failed or (dist is not None and isinstance(error, (dist.DistNetworkError, dist.DistStoreError)))
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        write(path, kind, error, trace, echo)
    if backends and not echo:
        place = place_of(trace)
        shoal.fail(backends[0], words_of(kind, error) + (f" ({place})" if place else ""))


def tell(kind, error, trace):
    """As _tell; whatever goes wrong here must not hide the exception itself."""
    try:
        _tell(kind, error, trace)
    except Exception as failure:  # noqa: BLE001
        print(f"shoal: the failure could not be reported: {failure!r}", file=sys.stderr)


_installed_in = None


def install():
    """Reports exceptions that end this program, once per process; children that it forks report nothing."""
    global _installed_in
    process, previous = os.getpid(), sys.excepthook
    if _installed_in == process:
        return
    _installed_in = process

    def hook(kind, error, trace):
        if os.getpid() == process:
            tell(kind, error, trace)
        previous(kind, error, trace)

    sys.excepthook = hook
