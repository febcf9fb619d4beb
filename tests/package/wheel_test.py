"""Builds the wheel of python/ and uses its program `shoal` in a fresh virtual environment, which has PyTorch beside it as pip would put it there.

    wheel_test.py SOURCE PYTHON

PYTHON has PyTorch 2.11. Exit code 77, with the reason, where it has not.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile


def run(words, expected=0, **environment):
    """What it printed."""
    done = subprocess.run(list(map(str, words)), env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=1500)
    if done.returncode != expected:
        sys.exit(f"{' '.join(map(str, words))}\nexit code {done.returncode}, not {expected}\n{done.stdout[-4000:]}")
    return done.stdout


def check(holds, words):
    if not holds:
        sys.exit(words)


class Wheel:
    """A wheel that is built with these variables, installed by itself into a virtual environment."""

    def __init__(self, source, python, folder, torch, **environment):
        folder.mkdir()
        run([python, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, source / "python"], **environment)
        [file] = folder.glob("shoal-*.whl")
        self.names = zipfile.ZipFile(file).namelist()
        run([python, "-m", "venv", "--without-pip", folder / "venv"])
        own = folder / "venv" / "bin" / "python"
        run([python, "-m", "pip", "--python", own, "install", "--no-deps", "--no-index", file])
        self.site = pathlib.Path(run([own, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
        (self.site / "torch").symlink_to(torch)
        self.shoal = folder / "venv" / "bin" / "shoal"


def check_program(wheel, source, folder):
    for name in ("shoal/__init__.pyi", "shoal/py.typed", "shoal/program/bin/shoal", "shoal/program/lib/libshoal_app.so"):
        check(name in wheel.names, f"the wheel has no {name}")
    [version] = re.findall(r'^version = "(.*)"', (source / "python" / "pyproject.toml").read_text(), re.M)
    printed = run([wheel.shoal, "--version"])
    check(version in printed, f"the program is of another version than {version}: {printed}")
    printed = run([wheel.shoal, "train", source / "examples/01_the_training_loop/job.toml", "--run-dir", folder / "run", "--set", "training.steps=20",
                   "--set", "lr_scheduler.warmup_steps=2", "--set", "parallelism.ranks=2"], LD_LIBRARY_PATH="")
    check("Trained 20 steps" in printed, f"the program did not train:\n{printed}")
    check("unknwon" in run([wheel.shoal, "unknwon"], expected=2), "a wrong command is not named")
    # Its own libraries and PyTorch are those of this virtual environment, wherever it lies.
    found = dict(re.findall(r"^\t(\S+) => (\S+) ", run(["ldd", wheel.site / "shoal/program/lib/libshoal_app.so"]), re.M))
    for name in ("libshoal_train.so", "libshoal_base.so", "libtorch_cpu.so"):
        home = wheel.site / ("torch" if "torch" in name else "shoal/program") / "lib" / name
        path = pathlib.Path(found[name])
        check(path.is_relative_to(wheel.site) and path.samefile(home), f"{name} is {path}, not {home}")


def check_backend_alone(wheel):
    check(not any(name.startswith("shoal/program") for name in wheel.names), "SHOAL_PROGRAM=0 did not leave the program out")
    check(any(re.match(r"shoal/_c10d\.", name) for name in wheel.names), "the wheel has no backend")
    printed = run([wheel.shoal, "--version"], expected=1)
    check("SHOAL_PROGRAM=0" in printed, f"the command does not say why there is no program: {printed}")


def check_missing_package(source, python, folder):
    """Where CMake misses a package, the installation says how to get it, or do without."""
    folder.mkdir()
    (folder / "cmake").write_text("#!/bin/sh\nexit 1\n")
    (folder / "cmake").chmod(0o755)
    said = run([python, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, source / "python"], expected=1,
               PATH=f"{folder}:{os.environ['PATH']}")
    check("tools/setup.sh installs what the program" in said, f"nothing says what to install: {said[-2000:]}")


def main():
    source, python = (pathlib.Path(argument) for argument in sys.argv[1:3])
    probe = "import pathlib, torch; assert torch.__version__.startswith('2.11'); print(pathlib.Path(torch.__file__).resolve().parent)"
    found = subprocess.run([python, "-c", probe], capture_output=True, text=True)
    if found.returncode:
        print(f"SKIPPED wheel_test: {python} has no PyTorch 2.11; tools/setup_python.sh makes a Python that has")
        sys.exit(77)
    torch = found.stdout.split()[-1]
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        check_missing_package(source, python, scratch / "without_cmake")
        check_backend_alone(Wheel(source, python, scratch / "backend", torch, SHOAL_PROGRAM="0"))
        check_program(Wheel(source, python, scratch / "whole", torch, SHOAL_PROGRAM="1"), source, scratch)
    print("the wheel's program trains; without it the backend is there alone")


main()
