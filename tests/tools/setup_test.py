"""tools/setup.sh chooses the Torch that it should, and says what to do where it cannot go on. Torch and dpkg-query are played by small files."""
import hashlib
import os
import shutil
import subprocess
import unittest

import project

VERSION_HEADER = "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR {minor}\n"


class SetupTest(project.ProjectTest):
    def setUp(self):
        super().setUp()
        self.copy("tools/setup.sh", "tools/requirements-torch.txt")
        self.program("dpkg-query", 'for name in "$@"; do echo "$name installed"; done')  # all is there
        self.environment = {"PATH": f"{self.root}/bin:{os.environ['PATH']}", "HOME": str(self.root)}

    def program(self, name, text):
        self.write(f"bin/{name}", f"#!/bin/sh\n{text}\n").chmod(0o755)

    def torch(self, folder, minor=11):
        self.write(f"{folder}/__init__.py", "raise SystemExit('setup.sh must not import torch')\n")
        for name in ("include/ATen/core/Tensor.h", "lib/libtorch_cpu.so", "lib/libc10.so"):
            self.write(f"{folder}/{name}", "")
        self.write(f"{folder}/include/torch/headeronly/version.h", VERSION_HEADER.format(minor=minor))
        return str(self.root / folder)

    def setup_sh(self, before=(), **environment):
        return subprocess.run([*before, "bash", str(self.root / "tools/setup.sh")], capture_output=True, text=True,
                              env={**self.environment, **environment})

    def chosen(self):
        return (self.root / "build/torch-path").read_text().strip()

    def test_named_torch_is_kept_until_another_is_named(self):
        first, second = self.torch("first/torch"), self.torch("second/torch")
        self.assertEqual(self.setup_sh(SHOAL_TORCH=first).returncode, 0)
        self.assertEqual(self.chosen(), first)
        again = self.setup_sh()
        self.assertEqual((again.returncode, again.stdout, again.stderr), (0, "", ""))
        self.assertEqual(self.chosen(), first)
        self.assertEqual(self.setup_sh(SHOAL_TORCH=second).returncode, 0)
        self.assertEqual(self.chosen(), second)

    def test_named_folder_that_is_no_torch_or_an_older_one(self):
        for folder in (str(self.root), self.torch("old/torch", minor=10)):
            run = self.setup_sh(SHOAL_TORCH=folder)
            self.assertEqual(run.returncode, 1)
            self.assertIn(f"SHOAL_TORCH={folder} is not a Torch 2.11", run.stderr)
        self.assertFalse((self.root / "build/torch-path").exists())

    def test_torch_that_python_can_import(self):
        torch = self.torch("packages/torch")
        run = self.setup_sh(PYTHONPATH=str(self.root / "packages"))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(self.chosen(), torch)

    def test_chosen_torch_is_gone(self):
        first, second = self.torch("first/torch"), self.torch("packages/torch")
        self.setup_sh(SHOAL_TORCH=first)
        (self.root / "first/torch/lib/libc10.so").unlink()
        self.assertEqual(self.setup_sh(PYTHONPATH=str(self.root / "packages")).returncode, 0)
        self.assertEqual(self.chosen(), second)

    def test_missing_packages_without_rights(self):
        # As the real one: what was once removed is known and not installed, what it has never heard of makes it fail.
        self.program("dpkg-query", 'for name in "$@"; do case $name in ninja-build) ;; cmake) echo "$name config-files" ;; '
                     '*) echo "$name installed" ;; esac; done; exit 1')
        self.program("sudo", "exit 1")
        subprocess.run(["chmod", "-R", "a+rX", self.root], check=True)
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        run = self.setup_sh(before=nobody)
        self.assertEqual(run.returncode, 1)
        self.assertIn("sudo apt-get update && sudo apt-get install --yes --no-install-recommends cmake ninja-build\n", run.stderr)

    def test_no_python_of_the_pinned_version(self):
        for name in ("python3", "python3.10", "python3.11", "python3.12", "python3.13"):
            self.program(name, "exit 1")
        script = self.root / "tools/setup.sh"
        script.write_text(script.read_text().replace("/usr/bin/python3", "python3"))
        run = self.setup_sh()
        self.assertEqual(run.returncode, 1)
        self.assertIn("no Python 3.10 to 3.13", run.stderr)

    def test_wheel_of_each_python(self):
        stamp = hashlib.sha256((self.root / "tools/requirements-torch.txt").read_bytes()).hexdigest()
        for minor in (10, 11, 12, 13):
            shutil.rmtree(self.root / ".venv", ignore_errors=True)
            torch = self.torch(f".venv/lib/python3.{minor}/site-packages/torch")
            self.write(".venv/shoal-requirements.sha256", f"{stamp}  -\n")
            self.assertEqual(self.setup_sh().returncode, 0)
            self.assertEqual(self.chosen(), torch)

    def test_interrupted_installation_is_made_anew(self):
        self.program("python3", f'[ "$2" = venv ] && echo made >>{self.root}/calls; exit 0')  # answers every question with yes, makes nothing
        self.write(".venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so", "half a library")
        run = self.setup_sh()
        self.assertEqual(run.returncode, 1)
        self.assertIn("pip could not install Torch", run.stderr)
        self.assertEqual((self.root / "calls").read_text(), "made\n")
        self.assertFalse((self.root / "build/torch-path").exists())


if __name__ == "__main__":
    unittest.main()
