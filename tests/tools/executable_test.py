"""The shoal program starts without LibTorch: nothing that it is linked with, directly or not, is Torch's. Argument: the program."""
import subprocess
import sys
import unittest

PROGRAM = sys.argv.pop()


class ExecutableTest(unittest.TestCase):
    def test_links_no_torch(self):
        libraries = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True, check=True).stdout
        self.assertIn("libshoal_base", libraries)
        self.assertNotIn("not found", libraries)
        for name in ("libtorch", "libc10", "libcudart"):
            self.assertNotIn(name, libraries)


if __name__ == "__main__":
    unittest.main()
