"""Builds the extension module and the program `shoal` with CMake against the Torch of this Python."""
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = pathlib.Path(__file__).resolve().parent


OLDEST = (2, 11)
PROGRAM_FOR = (2, 11)  # the LibTorch that the C++ side is tested with


def torch_version():
    """(major, minor) of the PyTorch of this Python; None where there is none."""
    try:
        major, minor = importlib.metadata.version("torch").split(".")[:2]
        return int(major), int(minor)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_folder():
    """The installed PyTorch. c10d's C++ interface changes with every version, so a wheel is for the version that it is built against."""
    try:
        import torch
    except ImportError as error:
        sys.exit(f"shoal: building needs PyTorch 2.11 or newer in this Python ({error}). Install it, then: pip install --no-build-isolation ./python")
    if torch_version() < OLDEST:
        sys.exit(f"shoal: this is PyTorch {torch.__version__}; shoal builds against 2.11 and newer versions.")
    return pathlib.Path(torch.__file__).parent


def dependencies():
    """PyTorch 2.15.1 has the interface of 2.15.0."""
    version = torch_version()
    return [f"torch=={version[0]}.{version[1]}.*" if version else "torch>=2.11"]


def with_program():
    """Does the wheel carry the program? SHOAL_PROGRAM=0 leaves it out."""
    asked = os.environ.get("SHOAL_PROGRAM", "1")
    if asked not in ("0", "1"):
        sys.exit(f"shoal: SHOAL_PROGRAM is 0 or 1, not '{asked}'")
    return asked == "1" and torch_version() == PROGRAM_FOR


class CMakeBuild(build_ext):
    def build_extension(self, ext):
        target = pathlib.Path(self.get_ext_fullpath(ext.name)).resolve()
        # Two folders below the root and with Ninja, like the build trees of the project: ccache compares paths relative to the folder in which the
        # compiler runs, which with make is another one for each room.
        work = HERE.parent / "build" / "wheel-{}-torch-{}.{}".format(sysconfig.get_config_var("SOABI"), *torch_version())
        work.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        program = target.parent / "program"
        shutil.rmtree(program, ignore_errors=True)  # of an earlier build
        configure = ["cmake", "-S", str(HERE), "-B", str(work), f"-DSHOAL_TORCH={torch_folder()}",
                     f"-DSHOAL_PYTHON_INCLUDE={sysconfig.get_path('include')}", f"-DSHOAL_PYTHON_SUFFIX={sysconfig.get_config_var('EXT_SUFFIX')}",
                     f"-DSHOAL_PYTHON_OUTPUT={target.parent}", f"-DSHOAL_WHEEL_PROGRAM={'ON' if with_program() else 'OFF'}"]
        if shutil.which("ninja") and not (work / "CMakeCache.txt").exists():
            configure += ["-G", "Ninja"]
        if subprocess.run(configure).returncode:
            more = ("tools/setup.sh installs what the program `shoal` needs; with SHOAL_PROGRAM=0 in the environment the backend is built alone, which "
                    "needs less (docs/pytorch.md)") if with_program() else "docs/pytorch.md says what the build needs"
            sys.exit(f"shoal: CMake could not configure the build (its words are above). {more}.")
        subprocess.run(["cmake", "--build", str(work), "--parallel", str(min(os.cpu_count() or 1, 8))], check=True)
        if with_program():
            subprocess.run(["cmake", "--install", str(work), "--prefix", str(program), "--strip"], check=True)


setup(install_requires=dependencies(), ext_modules=[Extension("shoal._c10d", sources=[])], cmdclass={"build_ext": CMakeBuild})
