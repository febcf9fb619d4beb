"""bench/run.py runs what is chosen, writes what was printed, and says what went wrong; bench/page.py makes the page of it."""
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
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
        print(json.dumps({"case": name, "unit": "GB/s", "ours": 12.5, "peer": 10.0, "ratio": 1.25, "spread": 0.01, "limit": %s}), flush=True)
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
        self.assertRegex(first["date"], r"^20\d\d-\d\d-\d\d$")

    def test_results_of_other_cases_are_kept(self):
        self.program()
        self.assertEqual(self.bench("copy/*").returncode, 0)
        self.program(limit="1.1")
        self.assertEqual(self.bench("copy/1MiB").returncode, 0)
        self.assertEqual([(result["case"], result["limit"]) for result in self.results()], [("copy/1GiB", 1.2), ("copy/1MiB", 1.1)])
        # What was printed before a run is interrupted is there.
        self.write("build/release/bin/memory_bench", PROGRAM.replace('print("measuring", name)', 'name == "copy/1GiB" and time.sleep(600)')
                   .replace("import json", "import time, json") % ("1.0", 0)).chmod(0o755)
        running = subprocess.Popen([sys.executable, "-B", project.ROOT / "bench" / "run.py", "--root", self.root, "copy/*"], stdout=subprocess.PIPE, text=True,
                                   start_new_session=True)
        while running.poll() is None and self.results()[-1]["limit"] != 1.0:
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        self.assertEqual([(result["case"], result["limit"]) for result in self.results()], [("copy/1GiB", 1.2), ("copy/1MiB", 1.0)])

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


README = "# Shoal\n<!-- bench/page.py writes this table -->\n<!-- end of the table -->\nmore\n"
MEASURED = {"case": "tcp/all_reduce/gloo/to-16KiB", "unit": "us", "ours": 9.64, "peer": 179.2, "ratio": 18.59, "spread": 0.124, "limit": 1.0,
            "machine": "EPYC, 2 cores", "date": "2026-11-25"}


class PageTest(project.ProjectTest):
    def page(self, *arguments):
        return subprocess.run([sys.executable, "-B", project.ROOT / "bench" / "page.py", "--root", self.root, *arguments], capture_output=True, text=True)

    def written(self, *results):
        self.write("bench/results/latest.jsonl", "".join(json.dumps(result) + "\n" for result in results))
        run = self.page()
        self.assertEqual(run.returncode, 0, run.stderr)
        return (self.root / "docs/benchmarks.md").read_text()

    def setUp(self):
        super().setUp()
        self.write("README.md", README)
        (self.root / "docs").mkdir(exist_ok=True)

    def test_rows(self):
        page = self.written(MEASURED, {**MEASURED, "case": "lonely", "peer": None, "ratio": None})
        self.assertIn("| `tcp/all_reduce/gloo/to-16KiB` | us | 9.64 | 179 | 18.6× | 12 % | 1 | 2026-11-25 | M1 |\n", page)
        self.assertIn("- M1: EPYC, 2 cores\n", page)
        self.assertNotIn("lonely", page)
        readme = (self.root / "README.md").read_text()
        self.assertIn("| 9.64 us | 179 us | 18.6× (12 %) |\n", readme)
        self.assertTrue(readme.startswith("# Shoal\n") and readme.endswith("-->\nmore\n"))

    def test_cases_that_were_not_measured_keep_their_rows(self):
        self.written(MEASURED)
        page = self.written({**MEASURED, "case": "checkpoint/blocked", "machine": "Another", "date": "2026-11-26", "spread": None, "ours": 12345.6, "limit": None})
        self.assertIn("| `tcp/all_reduce/gloo/to-16KiB` | us | 9.64 | 179 | 18.6× | 12 % | 1 | 2026-11-25 | M2 |\n", page)
        self.assertIn("| `checkpoint/blocked` | us | 12,346 | 179 | 18.6× |  |  | 2026-11-26 | M1 |\n", page)
        self.assertEqual(self.written({**MEASURED, "ours": 5.0}).count("tcp/all_reduce/gloo/to-16KiB"), 1)
        self.assertIn("| us | 5 | 179 |", (self.root / "docs/benchmarks.md").read_text())
        # Results of an earlier day do not replace those of the page.
        self.assertIn("| us | 5 | 179 |", self.written({**MEASURED, "ours": 7.0, "date": "2026-11-24"}))
        # Written from itself, the page is the same.
        again = (self.root / "docs/benchmarks.md").read_text()
        self.assertEqual(self.written(), again)

    def test_check(self):
        self.written(MEASURED)
        self.assertEqual(self.page("--check").returncode, 0)
        readme = self.root / "README.md"
        readme.write_text(readme.read_text().replace("9.64", "9.46"))
        self.assertIn("not those of docs/benchmarks.md", self.page("--check").stderr)

    def test_the_picture(self):
        self.assertNotIn("speed.svg", self.written({**MEASURED, "case": "checkpoint/blocked"}))
        self.assertFalse((self.root / "docs/speed.svg").exists())
        # The axis goes from 1, the position 530, to 20, the first round value above 18.6 and half of its spread: 810.
        self.assertIn("![Ratios to peers](speed.svg)", self.written(MEASURED))
        speed = self.root / "docs/speed.svg"
        bar = re.search(r'<rect x="530.0" y="[0-9.]+" width="([0-9.]+)" height="16"', speed.read_text())
        self.assertAlmostEqual(float(bar[1]), 280 * math.log(18.6) / math.log(20), delta=0.1)
        self.assertIn(">18.6× (12 %)</text>", speed.read_text())
        self.assertIn(">20×</text>", speed.read_text())
        self.assertNotIn(">50×</text>", speed.read_text())
        # A ratio below 1 is a bar to the left of it.
        self.written({**MEASURED, "case": "tcp/all_reduce/gloo/from-1MiB", "ratio": 0.5, "spread": None})
        bar = re.search(r'<rect x="530.0" y="[0-9.]+" width="([0-9.]+)" height="16"', speed.read_text())
        self.assertAlmostEqual(float(bar[1]), 280 * math.log(2) / math.log(40), delta=0.1)
        self.assertEqual(self.page("--check").returncode, 0)
        speed.write_text(speed.read_text().replace("18.6×", "19.6×"))
        self.assertIn("docs/speed.svg does not show the figures", self.page("--check").stderr)

    def test_the_projects_own(self):
        run = subprocess.run([sys.executable, "-B", project.ROOT / "bench" / "page.py", "--check"], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)


if __name__ == "__main__":
    unittest.main()
