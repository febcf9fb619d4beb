"""bench/collective/wan_bench.cpp refuses, before it makes any site, what it does not read. Argument: the program."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop()
CASE = "wan/all_reduce/rails/1"


class WanBenchTest(unittest.TestCase):
    def run_it(self, *words):
        return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=60)

    def assert_refused(self, words, text):
        run = self.run_it(*words)
        self.assertEqual((run.returncode, run.stdout), (1, ""), words)
        self.assertIn(text, run.stderr)

    def test_names_its_cases(self):
        run = self.run_it("--list")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stdout.splitlines(), [
            *(f"wan/all_reduce/rails/{rails}" for rails in (1, 8, 64)),
            *(f"wan/all_reduce/slow_rail/{rails}" for rails in (8, 64))])

    def test_a_case_that_is_none_is_refused(self):
        self.assert_refused(["wan/all_reduce/rails/2"], "wan/all_reduce/rails/2: neither a case nor an option; --list names")
        self.assert_refused([CASE, "--megabyte", "8"], "--megabyte: neither a case nor an option")

    def test_numbers_are_numbers_within_bounds(self):
        for option in ("--megabytes", "--megabits", "--round-trip", "--rounds", "--raw"):
            for given in ("0", "-3", "0.5", "ten", "8x", "nan", "inf", "2e9", ""):
                self.assert_refused([CASE, option, given], f"{option} {given}: must be a number from 1 to 1000000000")
            self.assert_refused([CASE, option], f"{option} : must be a number from 1 to 1000000000")

    def test_a_figure_takes_neither_cases_nor_a_round_trip(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "figure.svg"
            self.assert_refused(["--figure", file, "--round-trip", "20"], "--round-trip means nothing beside --figure")
            self.assert_refused(["--figure", file, CASE], f"{CASE} means nothing beside --figure")
            self.assertFalse(file.exists())
            self.assert_refused(["--figure", f"{folder}/none/figure.svg"], "none/figure.svg cannot be written")
        self.assert_refused(["--figure"], "--figure: name the file")


if __name__ == "__main__":
    unittest.main()
