"""tools/test_newer_pytorch.sh makes a Python for each version, and says of each what its tests came to. Python is played by a small file."""
import os
import subprocess
import unittest

import project

PYTHON = r"""#!/bin/sh
version=$(basename "$(dirname "$(dirname "$0")")")
echo "$version: $*" >>{root}/calls
case "$*" in
  '-m pip index versions'*) echo 'torch (2.99.1)' ;;
  '-m venv --clear'*) mkdir -p "$4/bin" "$4/packages/torch/lib" && cp "$0" "$4/bin/python" ;;
  *importlib.metadata*" torch "*) echo cuda-toolkit==13.0.2 ;;
  *importlib.metadata*cudart*) echo 'nvidia-cuda-runtime==13.0.96.*' ;;
  *importlib.metadata*cupti*) echo 'nvidia-cuda-cupti==13.0.85.*' ;;
  *sysconfig*) echo {root}/build/$version/packages ;;
  *tests/python/run.py)
    case $version in
      *2.13.0) echo 'Ran 3 tests in 1.0s'; echo 'FAILED (failures=1)'; exit 1 ;;
      *2.14.0) echo 'ImportError'; exit 1 ;;
      *) echo 'Ran 3 tests in 1.0s'; echo OK ;;
    esac ;;
esac
"""


class NewerPyTorchTest(project.ProjectTest):
    def setUp(self):
        super().setUp()
        self.copy("tools/test_newer_pytorch.sh", "tools/cuda_stand_ins.sh")
        self.write("tools/setup_python.sh", "#!/bin/sh\n").chmod(0o755)
        self.write("bin/ldd", "#!/bin/sh\nprintf '\\tlibnvidia_played.so.3 => not found\\n'\n").chmod(0o755)
        self.write(".venv-python/bin/python", PYTHON.format(root=self.root)).chmod(0o755)

    def run_on(self, *versions):
        environment = {**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}"}
        return subprocess.run(["bash", str(self.root / "tools/test_newer_pytorch.sh"), *versions], capture_output=True, text=True, env=environment)

    def test_each_version_is_built_and_tested(self):
        run = self.run_on("2.12.0", "2.13.0", "2.14.0")
        self.assertEqual(run.stdout.splitlines(), ["PyTorch 2.12.0: Ran 3 tests in 1.0s OK", "PyTorch 2.13.0: Ran 3 tests in 1.0s FAILED (failures=1)",
                                                   "PyTorch 2.14.0: stopped before its tests ended"], run.stderr)
        self.assertEqual(run.returncode, 1)
        calls = [line for line in (self.root / "calls").read_text().splitlines() if line.startswith("pytorch-2.12.0: -m pip")]
        self.assertIn("torch==2.12.0", calls[1])
        self.assertIn("cuda-toolkit==13.0.2", calls[2])
        self.assertIn("nvidia-cuda-runtime==13.0.96.* nvidia-cuda-cupti==13.0.85.*", calls[3])
        self.assertIn("--no-build-isolation", calls[4])
        self.assertTrue((self.root / "build/pytorch-2.12.0/lib/cuda_stand_ins/libnvidia_played.so.3").exists())

    def test_the_newest_is_made_once(self):
        for _ in range(2):
            run = self.run_on()
            self.assertEqual((run.returncode, run.stdout), (0, "PyTorch 2.99.1: Ran 3 tests in 1.0s OK\n"), run.stderr)
        calls = (self.root / "calls").read_text()
        self.assertEqual((calls.count("-m venv"), calls.count("./python")), (1, 2))

    def test_what_is_no_version(self):
        run = self.run_on("2.12.0", "newest")
        self.assertEqual((run.returncode, run.stdout), (1, ""))
        self.assertIn("'newest' is no version", run.stderr)


if __name__ == "__main__":
    unittest.main()
