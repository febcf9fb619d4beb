"""bench/run.py runs what is chosen, writes what was printed, and says what went wrong."""
import json
import subprocess
import sys
import unittest

import project

PROGRAM = """#!/usr/bin/env python3
import json, sys
names = ["copy/1MiB", "copy/1GiB", "lost"]
if sys.argv[1:] == ["--list"]:
    print("\\n".join(names))
    sys.exit()
for name in sys.argv[1:]:
    if name != "lost":
        print("measuring", name)
        print(json.dumps({"case": name, "unit": "GB/s", "ours": 12.5, "peer": 10.0, "ratio": 1.25, "spread": 0.01, "limit": %s}))
sys.exit(%d)
"""


class BenchTest(project.ProjectTest):
    def program(self, limit="1.2", code=0):
        self.write("build/release/bin/memory_bench", PROGRAM % (limit, code)).chmod(0o755)

    def bench(self, *arguments):
        return subprocess.run([sys.executable, "-B", project.ROOT / "bench" / "run.py", "--root", self.root, *arguments],
                              capture_output=True, text=True)

    def results(self):
        return [json.loads(line) for line in (self.root / "bench/results/latest.jsonl").read_text().splitlines()]

    def test_list(self):
        self.program()
        self.assertEqual(self.bench("--list").stdout, "copy/1MiB\ncopy/1GiB\nlost\n")
        self.assertEqual(self.bench("--list", "*GiB").stdout, "copy/1GiB\n")
        self.assertFalse((self.root / "bench/results").exists())

    def test_results(self):
        self.program()
        run = self.bench("copy/*")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("measuring copy/1MiB", run.stdout)
        first, second = self.results()
        self.assertEqual((first["case"], second["case"], first["ratio"]), ("copy/1MiB", "copy/1GiB", 1.25))
        self.assertIn("cores", first["machine"])

    def test_failures(self):
        self.program(limit="1.3")
        run = self.bench("copy/1MiB")
        self.assertEqual(run.returncode, 1)
        self.assertIn("copy/1MiB: the ratio 1.250 is below 1.3", run.stderr)
        self.program(code=3)
        self.assertIn("memory_bench exited with 3", self.bench("copy/1MiB").stderr)
        self.program(limit="None")
        run = self.bench()
        self.assertEqual(run.returncode, 1)
        self.assertEqual(run.stderr, "bench: lost: printed no result\n")
        self.assertEqual(self.bench("nothing*").returncode, 1)


if __name__ == "__main__":
    unittest.main()
