"""The shoal program starts without LibTorch, from the build folder and installed. Arguments: the program, the build folder."""
import subprocess
import sys
import tempfile
import unittest

BUILD = sys.argv.pop()
PROGRAM = sys.argv.pop()


class ExecutableTest(unittest.TestCase):
    def check(self, program):
        libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        self.assertIn("libshoal_base", libraries)
        for name in ("not found", "libtorch", "libc10", "libcudart"):
            self.assertNotIn(name, libraries)
        run = subprocess.run([program, "--help"], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("train", run.stdout)

    def test_built(self):
        self.check(PROGRAM)

    def test_installed(self):
        with tempfile.TemporaryDirectory(prefix="shoal-install-") as prefix:
            subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
            libraries = subprocess.run(["ldd", f"{prefix}/bin/shoal"], capture_output=True, text=True, check=True).stdout
            self.assertIn(f"{prefix}/bin/../lib/libshoal_base.so", libraries)
            self.check(f"{prefix}/bin/shoal")


if __name__ == "__main__":
    unittest.main()
