"""Runs the tests of the PyTorch backend; exit code 77, with the reason, where this Python cannot."""
import importlib.util
import pathlib
import sys
import time
import unittest

sys.path[:0] = sys.argv[1:]  # where an extension module lies that is not installed


def obstacle():
    try:
        import numpy  # noqa: F401
        import torch.distributed
        import shoal  # noqa: F401
    except (ImportError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    for name in ("accelerate", "cloudpickle", "ipyparallel", "jupyter_distributed", "pytorch_lightning", "transformers"):
        if not importlib.util.find_spec(name):
            return f"there is no {name}"
    return None if torch.distributed.is_available() else "this torch has no torch.distributed"


class TimedResult(unittest.TextTestResult):
    """Also remembers how many seconds each test took."""

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.seconds = []

    def startTest(self, test):
        super().startTest(test)
        self.begin = time.monotonic()

    def stopTest(self, test):
        self.seconds.append((time.monotonic() - self.begin, test.id()))
        super().stopTest(test)


if __name__ == "__main__":
    reason = obstacle()
    if reason:
        print(f"SKIPPED python_test: {sys.executable} cannot run it ({reason}); tools/setup_python.sh makes a Python that can")
        sys.exit(77)
    here = str(pathlib.Path(__file__).parent)
    sys.path.insert(0, here)
    outcome = unittest.TextTestRunner(verbosity=2, resultclass=TimedResult).run(unittest.defaultTestLoader.discover(here))
    for seconds, name in sorted(outcome.seconds, reverse=True)[:10]:
        print(f"{seconds:6.1f} s  {name}")
    sys.exit(not outcome.wasSuccessful())
