"""A small project in a temporary folder, in which the tests of tools/ plant violations."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def main(clang_14):
    """Runs the tests of a file, or ends it as skipped where a program of clang 14 is missing that what it tests asks for."""
    sys.path.insert(0, str(ROOT / "tools"))
    import check_tidy

    for name in clang_14:
        try:
            check_tidy.tool(name)
        except SystemExit as error:
            print(f"skipped: {error}")
            sys.exit(77)
    unittest.main()


class ProjectTest(unittest.TestCase):
    """`self.root` is a fresh folder for each test."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="shoal-tools-")
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name).resolve()

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def copy(self, *paths):
        for path in paths:
            self.write(path, (ROOT / path).read_text())

    def room(self, name, *links, torch=False):
        """A room that holds one harmless header."""
        words = [name] + (["TORCH"] if torch else []) + (["LINKS", *links] if links else [])
        self.write(f"src/shoal/{name}/CMakeLists.txt", f"shoal_library({' '.join(words)})\n")
        self.write(f"src/shoal/{name}/thing.h", "#pragma once\n#include <cstddef>\n")

    def run_tool(self, name, *arguments):
        return subprocess.run([sys.executable, "-B", str(ROOT / "tools" / name), "--root", str(self.root), *arguments],
                              capture_output=True, text=True)

    def assert_passes(self, run):
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "", ""))

    def assert_fails(self, run, *words):
        """It exits with 1, and one line of what it prints holds all the words."""
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertTrue(any(all(word in line for word in words) for line in run.stdout.splitlines()), f"{words} not in:\n{run.stdout}{run.stderr}")
