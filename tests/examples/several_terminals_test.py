"""Types what the pages show for several terminals (their `console` blocks), each command in a process of its own, and ends them as the pages say.

    several_terminals_test.py SOURCE BUILD PYTHON

A command waits until the files are there that it reads (`$(head -1 FILE)`). Addresses on a page are those that members had when it was written: a joiner
gets the one that the first member prints. Hosts 10.0.0.N are 127.0.0.N here; machines a and b are two folders.
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PYTHON, BUILD, SOURCE = sys.argv.pop(), pathlib.Path(sys.argv.pop()).resolve(), pathlib.Path(sys.argv.pop()).resolve()
PATIENCE_S = 60
JOINS_AT = r"others join with --elastic --join (\S+:\d+)\."


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"after {PATIENCE_S} s: {what() if callable(what) else what}")
        time.sleep(0.05)
    return found


def blocks(page):
    """The commands of each `console` block, as (letter of the machine or "", command)."""
    found = []
    for text in re.findall(r"^```console\n(.*?)^```", (SOURCE / page).read_text(), re.M | re.S):
        found.append(re.findall(r"^(\w?)\$ (.*)$", re.sub(r" *\\\n *", " ", text), re.M))
    return found


def lines_of(path):
    return path.read_text().splitlines() if path.exists() else []


class Terminal:
    """A command that somebody has typed."""

    def __init__(self, command, folder, environment):
        self.command, self.log = command, tempfile.TemporaryFile("w+")
        for file in re.findall(r"\$\(head -1 (\S+)\)", command):
            wait_until(lambda: lines_of(folder / file), f"{file} is not there for: {command}")
        self.process = subprocess.Popen(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT,
                                        start_new_session=True)

    def printed(self):
        self.log.seek(0)
        return self.log.read()

    def awaits(self, pattern):
        """Returns the match when the command has printed it."""
        return wait_until(lambda: re.search(pattern, self.printed()), lambda: f"no {pattern!r} from: {self.command}\n{self.printed()}")

    def signal(self, which):
        os.killpg(self.process.pid, which)

    def ends(self):
        """Returns the exit code."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.command}\n{self.printed()}") from None

    def close(self):
        if self.process.poll() is None:
            self.signal(signal.SIGKILL)
            self.process.wait()
        self.log.close()


class SeveralTerminals(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in ("examples", "data", "build"):
            (self.folder / name).symlink_to(SOURCE / name)
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / "shoal").symlink_to(BUILD / "bin" / "shoal")
        # A link would not know its virtual environment.
        (self.folder / "bin" / "python").write_text(f'#!/bin/sh\nexec "{PYTHON}" "$@"\n')
        (self.folder / "bin" / "python").chmod(0o755)
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("SHOAL_")}
        self.environment.update(PATH=f"{self.folder}/bin:{self.environment['PATH']}", PYTHONPATH=f"{BUILD}/python", SECRET="nobody can guess this")

    def type(self, command, folder=None):
        terminal = Terminal(command.replace("build/release/bin/", f"{BUILD}/bin/"), folder or self.folder, self.environment)
        self.addCleanup(terminal.close)
        return terminal

    def assert_ends(self, terminal, *codes):
        code = terminal.ends()
        self.assertIn(code, codes or (0,), terminal.printed())

    def stop(self, *terminals):
        """With Ctrl-C, after which jobs end with 130 and the program, which asks for it, with 0."""
        for terminal in terminals:
            terminal.signal(signal.SIGINT)
        for terminal in terminals:
            self.assert_ends(terminal, 130 if terminal.command.startswith("shoal train") else 0)

    def join(self, command, first, folder=None):
        """Types a command that joins the group of the first member, and waits until it has; returns its terminal."""
        address = first.awaits(JOINS_AT)[1]
        terminal = self.type(re.sub(r"--join \S+", f"--join {address}", command), folder)
        terminal.awaits("Joined the group behind step")
        return terminal

    def check_replay(self, command, folder=None):
        replayed = self.type(command, folder)
        self.assert_ends(replayed)
        self.assertRegex(replayed.printed(), r"Steps 1 to \d+ of runs/\w+ have the same bits on one process\.")

    def await_steps(self, run, steps):
        """Waits for so many lines of metrics.jsonl."""
        wait_until(lambda: len(lines_of(run / "metrics.jsonl")) >= steps, f"{run} has less than {steps} steps")

    def check_lineages(self, steps):
        """Those of a and b have the same lines, and so many."""
        a, b = (self.folder / name for name in "ab")
        wait_until(lambda: min(len(lines_of(a)), len(lines_of(b))) >= steps, "the lineages do not grow")
        ours, theirs = lines_of(a), lines_of(b)
        together = set(ours) & set(theirs)
        self.assertGreaterEqual(len(together), steps - 1)

    def test_the_program_of_example_15(self):
        commands = blocks("examples/15_elastic/README.md")[0]
        first, second, third = (self.type(command) for _, command in commands)
        self.assert_ends(third, -signal.SIGKILL, 128 + signal.SIGKILL)
        self.check_lineages(53)
        self.stop(first, second)

    def test_tokens_of_example_15(self):
        first, issuer, joiner = blocks("examples/15_elastic/README.md")[1]
        began = self.type(first[1])
        self.assert_ends(self.type(issuer[1]))
        joined = self.type(joiner[1] + " --lineage b")
        wait_until(lambda: len(lines_of(self.folder / "b")) > 5, lambda: f"it makes no steps: {joined.printed()}")
        self.assertIn('"$SECRET"', first[1])
        self.stop(joined, began)

    def test_the_job_of_example_15(self):
        members, replay = blocks("examples/15_elastic/README.md")[2:4]
        runs = [self.folder / "runs" / name for name in "abc"]
        a, b, c = (self.type(command) for _, command in members)
        for run in runs:
            self.await_steps(run, 20)
        c.signal(signal.SIGKILL)
        self.assertEqual(c.ends(), -signal.SIGKILL)
        before = len(lines_of(runs[0] / "metrics.jsonl"))
        self.await_steps(runs[0], before + 20)
        # The page starts it again with the address of one that lives.
        again = self.type(members[2][1].replace(" --fresh", "").replace("runs/a/address", "runs/b/address"))
        again.awaits("Joined the group behind step")
        self.stop(b, again)
        self.stop(a)
        self.check_replay(replay[0][1])

    def test_the_python_of_example_15(self):
        probe = "import torch.distributed, shoal"
        if subprocess.run([PYTHON, "-c", probe], env=self.environment, capture_output=True).returncode != 0:
            self.assertNotIn("python_test", os.environ.get("SHOAL_MUST_RUN", ""), "needs a Python with a whole PyTorch")
            self.skipTest("needs a Python with a whole PyTorch")
        first, second = (self.type(command) for _, command in blocks("examples/15_elastic/README.md")[4])
        self.check_lineages(10)
        self.stop(first, second)

    def test_the_rounds_of_example_16(self):
        (a, b), = blocks("examples/16_diloco/README.md")
        first = self.type(a[1])
        second = self.join(b[1], first)
        self.await_steps(self.folder / "runs/b", 60)
        second.signal(signal.SIGKILL)
        before = len(lines_of(self.folder / "runs/a/metrics.jsonl"))
        self.await_steps(self.folder / "runs/a", before + 60)
        self.stop(first)
        self.check_replay("shoal replay runs/a")

    def a_job(self, name, *more):
        """Machines a and b, with the job and what it needs."""
        machines = {}
        for letter in "ab":
            machine = machines[letter] = self.folder / letter
            machine.mkdir()
            text = (SOURCE / "examples/15_elastic/job.toml").read_text()
            text = re.sub(r'^name = "elastic"$', f'name = "{name}"', text, flags=re.M).replace("enabled = true\n", "".join(f"{line}\n" for line in more))
            (machine / "job.toml").write_text(text)
        return machines

    def test_a_job_on_two_machines(self):
        machines = self.a_job("job")
        key, first, second = ((letter, command.replace("10.0.0.", "127.0.0.")) for letter, command in blocks("docs/concepts/elastic.md")[0])
        self.assert_ends(self.type(key[1], machines["a"]))
        shutil.copy(machines["a"] / "key", machines["b"])
        a = self.type(first[1], machines["a"])
        b = self.join(second[1], a, machines["b"])
        self.assertIn("--join 127.0.0.1:", a.printed())
        self.await_steps(machines["b"] / "runs/job", 20)
        self.stop(b, a)
        self.check_replay(blocks("docs/concepts/elastic.md")[2][0][1], machines["a"])

    def test_members_of_several_ranks(self):
        machines = self.a_job("job")
        first, second = blocks("docs/concepts/elastic.md")[1]
        # Both machines are this one: four ranks each are many for it, and two divide the model as well.
        first, second = (command.replace("--nproc 4", "--nproc 2") for _, command in (first, second))
        a = self.type(first, machines["a"])
        b = self.join(second, a, machines["b"])
        self.await_steps(machines["b"] / "runs/job", 20)
        self.stop(b, a)

    def test_three_laptops(self):
        page = "docs/how_to/three_laptops.md"
        (job,) = re.findall(r"^```toml\n# laptops.toml\n(.*?)^```", (SOURCE / page).read_text(), re.M | re.S)
        prepare, begin, back, replay = blocks(page)
        machines = {letter: self.folder / letter for letter in "abc"}
        for machine in machines.values():
            machine.mkdir()
            (machine / "laptops.toml").write_text(job)
            (machine / "data").symlink_to(SOURCE / "data")
        # The addresses that a laptop and its router have, and the job is smaller.
        places = {"192.168.1.20": "127.0.0.11", "203.0.113.7": "127.0.0.11", "192.168.178.31": "127.0.0.12", "198.51.100.23": "127.0.0.12",
                  "10.4.0.5": "127.0.0.13", "192.0.2.44": "127.0.0.13"}
        smaller = " ".join(f"--set {one}" for one in ("model.layers=1", "training.sequence_length=32", "training.global_batch_sequences=6",
                                                      "low_communication.every=10", "validation.interval=0", "parallelism.threads_per_rank=1"))

        def on(letter, command):
            for theirs, ours in places.items():
                command = command.replace(theirs, ours)
            return self.type(f"{command} {smaller}" if "shoal train" in command else command, machines[letter])

        for letter, command in prepare:
            self.assert_ends(on(letter, command))
        for letter in "bc":
            shutil.copy(machines["a"] / "key", machines[letter])
            shutil.copytree(machines["a"] / "runs/data", machines[letter] / "runs/data")
        runs = {letter: machine / "runs/laptops" for letter, machine in machines.items()}
        terminals = {}
        for letter, command in begin:
            terminals[letter] = on(letter, command)
            terminals[letter].awaits(JOINS_AT)
        self.assertIn("--join 127.0.0.11:7000.", terminals["a"].printed())
        self.await_steps(runs["c"], 20)
        # It is closed.
        terminals["c"].signal(signal.SIGKILL)
        terminals["a"].awaits("Members: 2 from step .*; gone: ")
        (letter, command), = back
        terminals[letter] = on(letter, command)
        terminals[letter].awaits("Joined the group behind step")
        terminals["a"].awaits("(?s)gone: .*Members: 3 from step")
        self.stop(terminals["b"])
        self.stop(terminals["c"])
        self.stop(terminals["a"])
        (letter, command), = replay
        self.check_replay(command, machines[letter])

    def test_tokens_of_a_job(self):
        secret, key, issue = blocks("docs/concepts/elastic.md")[3]
        first, second = blocks("docs/concepts/elastic.md")[4]
        self.assert_ends(self.type(secret[1]))
        shown = self.type(key[1])
        self.assert_ends(shown)
        machines = self.a_job("small", f'token_key = "{shown.printed().strip()}"')
        self.assert_ends(self.type(issue[1]))
        shutil.copy(self.folder / "token", machines["b"])
        a = self.type(first[1], machines["a"])
        b = self.join(second[1], a, machines["b"])
        # A token is good for one start.
        self.stop(b)
        again = self.type(re.sub(r"--join \S+", f"--join {a.awaits(JOINS_AT)[1]}", second[1]), machines["b"])
        self.assertNotEqual(again.ends(), 0)
        self.assertIn("the join token was used before", again.printed())
        self.stop(a)


if __name__ == "__main__":
    unittest.main()
