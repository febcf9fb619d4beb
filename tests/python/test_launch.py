"""shoal.launch runs functions of modules, of scripts and of notebooks."""
import contextlib
import io
import os
import subprocess
import sys
import time
import unittest

import torch
import torch.distributed as dist
from launched import variables

import shoal

NOTEBOOK = """
import shoal
scale = 10
def cell(x):
    import torch, torch.distributed as dist
    dist.init_process_group()
    value = torch.full((2,), x * scale)
    dist.all_reduce(value)
    return dist.get_rank(), value
print(shoal.launch(cell, (3,), nproc=2))
"""
SCRIPT = """
import shoal

class Found:
    def __init__(self, rank): self.rank = rank

def work():
    import os
    return Found(int(os.environ["RANK"]))

if __name__ == "__main__":
    print([found.rank for found in shoal.launch(work, nproc=2)])
"""


def sums(x, y):
    dist.init_process_group("gloo")
    assert dist.group.WORLD._get_backend(torch.device("cpu")).name() == "shoal"
    value = torch.tensor([float(dist.get_rank() + x)])
    dist.all_reduce(value)
    print("a line of rank", dist.get_rank())
    return {"rank": dist.get_rank(), "sum": value, "y": y, "threads": torch.get_num_threads()}


def fails():
    dist.init_process_group()
    if dist.get_rank() == 1:
        raise ValueError("no data")
    dist.all_reduce(torch.ones(10))


def never_returns():
    if os.environ["RANK"] == "1":
        time.sleep(300)


class LaunchTest(unittest.TestCase):
    def launch(self, *arguments, **options):
        """(the results, what was printed)"""
        with contextlib.redirect_stdout(io.StringIO()) as out:
            return shoal.launch(*arguments, **options), out.getvalue()

    def test_results_in_the_order_of_ranks(self):
        results, printed = self.launch(sums, (1, ["y"]), nproc=3)
        self.assertEqual(results, [{"rank": rank, "sum": torch.tensor([6.0]), "y": ["y"], "threads": 1} for rank in range(3)])
        self.assertEqual(sorted(printed.splitlines()), [f"[{rank}] a line of rank {rank}" for rank in range(3)])

    def test_the_first_cause_is_raised(self):
        with self.assertRaises(shoal.LaunchError) as caught, contextlib.redirect_stderr(io.StringIO()):
            shoal.launch(fails, nproc=2)
        text = str(caught.exception)
        self.assertRegex(text, r"^rank 1 of 2 failed at test_launch.py:\d+: ValueError: no data\n\nTraceback")
        self.assertIn('raise ValueError("no data")', text)
        self.assertEqual((caught.exception.rank, caught.exception.code), (1, 1))

    def test_a_limit_of_time(self):
        with self.assertRaisesRegex(TimeoutError, r"^(1 rank|2 ranks) of 2 had not returned after 1 s: (0, )?1$"):
            shoal.launch(never_returns, nproc=2, timeout_s=1)

    def python(self, *words, text=None):
        done = subprocess.run([sys.executable, *words], input=text, env=variables(), capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_a_function_of_a_notebook(self):
        """One that is in no file: cloudpickle sends it, with the variables that it uses."""
        self.assertEqual(self.python("-", text=NOTEBOOK), "[(0, tensor([60, 60])), (1, tensor([60, 60]))]\n")

    def test_a_function_and_a_class_of_a_script(self):
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"shoal-test-launch-{os.getpid()}.py")
        self.addCleanup(os.unlink, path)
        with open(path, "w") as file:
            file.write(SCRIPT)
        # Without cloudpickle: a name that Python finds first, and that is no module.
        self.assertEqual(self.python("-c", f"import sys, runpy; sys.modules['cloudpickle'] = None; runpy.run_path({path!r}, run_name='__main__')"),
                         "[0, 1]\n")


if __name__ == "__main__":
    unittest.main()
