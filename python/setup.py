"""Builds the extension module with CMake against the Torch of this Python."""
import os
import pathlib
import subprocess
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HERE = pathlib.Path(__file__).resolve().parent


def torch_folder():
    """The installed Torch, which must be 2.11: c10d's C++ interface changes with every version."""
    try:
        import torch
    except ImportError as error:
        sys.exit(f"shoal: building needs PyTorch 2.11 in this Python ({error}). Install it, then: pip install --no-build-isolation ./python")
    if torch.__version__.split("+")[0].split(".")[:2] != ["2", "11"]:
        sys.exit(f"shoal: this is PyTorch {torch.__version__}; shoal builds against 2.11 only, every other version is refused.")
    return pathlib.Path(torch.__file__).parent


class CMakeBuild(build_ext):
    def build_extension(self, ext):
        target = pathlib.Path(self.get_ext_fullpath(ext.name)).resolve()
        # Two folders below the root, like the build trees of the project: ccache compares paths relative to the folder in which the compiler runs.
        work = HERE.parent / "build" / f"wheel-{sysconfig.get_config_var('SOABI')}"
        work.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        configure = ["cmake", "-S", str(HERE), "-B", str(work), f"-DSHOAL_TORCH={torch_folder()}",
                     f"-DSHOAL_PYTHON_INCLUDE={sysconfig.get_path('include')}", f"-DSHOAL_PYTHON_SUFFIX={sysconfig.get_config_var('EXT_SUFFIX')}",
                     f"-DSHOAL_PYTHON_OUTPUT={target.parent}"]
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(work), "--parallel", str(min(os.cpu_count() or 1, 8))], check=True)


setup(ext_modules=[Extension("shoal._c10d", sources=[])], cmdclass={"build_ext": CMakeBuild})
