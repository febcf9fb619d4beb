"""tools/test.sh fails for a test that is skipped and may not be. ctest is played by a small program."""
import os
import subprocess
import unittest

import project


class SkipsTest(project.ProjectTest):
    def setUp(self):
        super().setUp()
        self.copy("tools/test.sh")
        self.write("tests/expected_skips.txt", "# name  when\npython_test  without PyTorch\nmpi_engine_test  without MPI\nmpi  a name that others begin with\n")
        self.write("build/release/Testing/Temporary/LastTest.log", "")

    def run_tests(self, skipped, must_run=None):
        lines = "".join(f"echo '\t{number} - {name} (Skipped)'\n" for number, name in enumerate(skipped, 1))
        self.write("bin/ctest", f"#!/bin/sh\n{lines}").chmod(0o755)
        environment = {"PATH": f"{self.root}/bin:{os.environ['PATH']}", **({} if must_run is None else {"SHOAL_MUST_RUN": must_run})}
        return subprocess.run(["bash", str(self.root / "tools/test.sh")], capture_output=True, text=True, env=environment)

    def test_expected_skips_pass(self):
        self.assertEqual(self.run_tests(["python_test", "mpi_engine_test"]).returncode, 0)
        self.assertEqual(self.run_tests(["python_test"], must_run="").returncode, 0)

    def test_other_skips_fail(self):
        run = self.run_tests(["python_test", "wire_test"])
        self.assertEqual(run.returncode, 1)
        self.assertIn(": wire_test\n", run.stderr)
        self.assertNotIn("python_test", run.stderr)

    def test_what_must_run_may_not_be_skipped(self):
        run = self.run_tests(["python_test", "mpi_engine_test"], must_run="python_test fuzz_test")
        self.assertEqual(run.returncode, 1)
        self.assertIn(": python_test\n", run.stderr)
        self.assertNotIn("mpi_engine_test", run.stderr)
        self.assertEqual(self.run_tests(["python_test", "mpi_engine_test"], must_run="fuzz_test mpi_engine_test").returncode, 1)


if __name__ == "__main__":
    unittest.main()
