"""Uses the installed CMake package as projects outside the tree do.

    package_test.py BUILD

Installs BUILD into a scratch folder and builds there: a program on a room without Torch, which must find no LibTorch; one source with every installed header;
and projects that must be refused, with words that say why. Example 13 is built by documented_commands_test.
"""
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def run(words, expected=0):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=600)
    if (done.returncode == 0) != (expected == 0):
        sys.exit(f"{' '.join(map(str, words))}\nexit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr


def project(folder, prefix, find):
    """A project that asks for nothing but `find`."""
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text(f"cmake_minimum_required(VERSION 3.25)\nproject(refused LANGUAGES CXX)\n{find}\n")
    return ["cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}"]


def main():
    build = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        prefix = scratch / "installed"
        run(["cmake", "--install", build, "--prefix", prefix])
        for name in ("without_torch", "every_header"):
            run(["cmake", "-S", HERE / name, "-B", scratch / name, f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Debug"])
            run(["cmake", "--build", scratch / name])
        printed = run([scratch / "without_torch" / "without_torch"])
        if printed != "1500\n":
            sys.exit(f"without_torch printed {printed!r}, not 1500")
        if "usage" not in run([prefix / "bin" / "shoal", "--help"]).lower():
            sys.exit("the installed program does not print its usage")
        for name, find, words in (("component", "find_package(shoal REQUIRED COMPONENTS colective)", "colective"),
                                  ("version", "find_package(shoal 99 REQUIRED)", "99"),
                                  ("torch", "set(SHOAL_TORCH /nowhere)\nfind_package(shoal REQUIRED)", "No Torch at '/nowhere'")):
            said = run(project(scratch / name, prefix, find), expected=1)
            if words not in said:
                sys.exit(f"{find} was refused without the words {words!r}:\n{said}")


main()
