"""The Python that README.md shows trains under torchrun, on two ranks."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

README = pathlib.Path(__file__).resolve().parents[2] / "README.md"
# Both ranks must hold the same weights after steps on different data: that is what DDP is for.
CHECK = """
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
both = [torch.empty_like(weights) for _ in range(2)]
dist.all_gather(both, weights)
assert torch.equal(*both) and dist.get_backend() == "shoal"
dist.destroy_process_group()
"""


class ReadmeTest(unittest.TestCase):
    def test_training_loop(self):
        [program] = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.M | re.S)
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "train.py")
            script.write_text(program + CHECK)
            run = subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", "--standalone",
                 "--nproc-per-node=2", str(script)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True,
                text=True, timeout=120)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)


if __name__ == "__main__":
    unittest.main()
