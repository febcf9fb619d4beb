"""torchrun's own summary shows what a failed rank of the Shoal backend said, and not an echo of it."""
import tempfile
import unittest

from launched import PROGRAMS, run


class TorchrunTest(unittest.TestCase):
    def test_its_root_cause_is_the_first(self):
        """Rank 1 fails; ranks 0 and 2 fail within the same second, because of it, and come before it in torchrun's order."""
        with tempfile.TemporaryDirectory() as folder:
            code, output = run("--standalone", "--nproc-per-node=3", f"--log-dir={folder}", PROGRAMS / "fails.py", "raise",
                               module="torch.distributed.run", SHOAL_REPLACE_GLOO="1")
        self.assertNotEqual(code, 0, output)
        self.assertIn("shoal: the program asked for gloo", output)
        root = output.partition("Root Cause (first observed failure):")[2]
        self.assertIn("rank      : 1 (local_rank: 1)", root, output)
        self.assertRegex(root, r"exitcode  : (1|-15) ")  # torchrun ends all as soon as it has seen one end
        self.assertIn('raise ValueError("the data is empty")', root)
        self.assertIn("ValueError: the data is empty", root)
        self.assertNotIn("To enable traceback see", output)


if __name__ == "__main__":
    unittest.main()
