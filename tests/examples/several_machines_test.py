"""Runs the scripts of the pages for several machines: what they show makes two ranks find each other and train.

    several_machines_test.py SOURCE BUILD PYTHON

two_machines.md: both scripts at once, in two network namespaces that a virtual cable joins, where this process may make them; else both with the
address of this host's loopback. slurm.md: the sbatch script, with a program in the place of srun that sets what Slurm sets.
kubernetes.md: the command and the environment of the manifest, for both pods. The losses must be those of two ranks on one machine.
"""
import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PYTHON, BUILD, SOURCE = sys.argv.pop(), pathlib.Path(sys.argv.pop()).resolve(), pathlib.Path(sys.argv.pop()).resolve()
SPACES = [f"shoal-docs-{os.getpid()}-{letter}" for letter in "ab"]
ADDRESSES = ("10.77.0.1", "10.77.0.2")
JOB = "examples/01_the_training_loop/job.toml"
# Floating-point sums of two ranks over TCP and over shared memory have the same order; a margin for another choice of algorithm.
TOLERANCE = 1e-4
SRUN = """#!/usr/bin/env bash
# Two nodes, one task on each.
export SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_STEP_TASKS_PER_NODE='1(x2)' SLURM_STEP_ID=0
SLURM_PROCID=1 SLURM_NODEID=1 "$@" --set parallelism.transport=tcp &
SLURM_PROCID=0 SLURM_NODEID=0 "$@" --set parallelism.transport=tcp && wait $!
"""


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (SOURCE / "docs" / "how_to" / page).read_text(), re.M | re.S)


def may_make_networks():
    try:
        made = subprocess.run(["ip", "netns", "add", SPACES[0]], capture_output=True).returncode == 0
    except OSError:
        return False
    subprocess.run(["ip", "netns", "delete", SPACES[0]], capture_output=True)
    return made


@contextlib.contextmanager
def two_machines():
    """For each machine the words that go before a command that runs on it."""
    try:
        for space in SPACES:
            subprocess.run(["ip", "netns", "add", space], check=True)
        subprocess.run(["ip", "link", "add", "shoal0", "netns", SPACES[0], "type", "veth", "peer", "name", "shoal0", "netns", SPACES[1]], check=True)
        for space, address in zip(SPACES, ADDRESSES):
            subprocess.run(["ip", "-n", space, "address", "add", f"{address}/24", "dev", "shoal0"], check=True)
            for device in ("lo", "shoal0"):
                subprocess.run(["ip", "-n", space, "link", "set", device, "up"], check=True)
        yield [["ip", "netns", "exec", space] for space in SPACES]
    finally:
        for space in SPACES:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)


class SeveralMachinesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in ("examples", "data"):
            (self.folder / name).symlink_to(SOURCE / name)
        # A program of this name, as long as the job needs not be: 60 steps.
        self.write_program("bin/shoal", f'#!/usr/bin/env bash\nexec "{BUILD}/bin/shoal" "$@" --set training.steps=60 --set checkpoint.interval=0\n')
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "MASTER_", "KUBERNETES_"))}
        self.environment["PATH"] = f"{self.folder}/bin:{self.environment['PATH']}"

    def write_program(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run_all(self, commands):
        """Runs all at once and returns what the first one printed."""
        started = [subprocess.Popen(words, cwd=self.folder, env={**self.environment, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                   for words, environment in commands]
        printed = [process.communicate(timeout=120) for process in started]
        for process, (out, error) in zip(started, printed):
            self.assertEqual(process.returncode, 0, out + error)
        return printed[0][0]

    def check_losses(self, run):
        self.run_all([(["shoal", "train", JOB, "--nproc", "2", "--run-dir", "runs/together"], {})])
        ours, together = ([json.loads(line)["loss"] for line in (self.folder / "runs" / name / "metrics.jsonl").read_text().splitlines()]
                          for name in (run, "together"))
        self.assertEqual(len(ours), 60)
        for step, (a, b) in enumerate(zip(ours, together), 1):
            self.assertAlmostEqual(a, b, delta=TOLERANCE, msg=f"step {step}")

    def test_two_machines(self):
        scripts = blocks("two_machines.md", "bash")
        self.assertEqual(len(scripts), 2)
        if may_make_networks():
            with two_machines() as machines:
                said = self.run_all([([*machine, "bash", "-ec", script], {}) for machine, script in zip(machines, scripts)])
        else:
            print("no network namespaces here: both ranks meet on the loopback")
            said = self.run_all([(["bash", "-ec", script.replace(ADDRESSES[0], "127.0.0.1")], {}) for script in scripts])
        self.assertIn("2 ranks", said)
        self.check_losses("two-machines")

    def test_slurm(self):
        (script,) = blocks("slurm.md", "bash")
        self.write_program("bin/srun", SRUN)
        said = self.run_all([(["bash", "-ec", script], {"SLURM_JOB_NODELIST": "127.0.0.[1-2]", "SLURM_JOB_ID": str(os.getpid())})])
        self.assertIn("2 ranks", said)
        self.check_losses("on-slurm")

    def test_kubernetes(self):
        (manifest,) = blocks("kubernetes.md", "yaml")
        read = subprocess.run([PYTHON, "-c", "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"],
                              input=manifest, capture_output=True, text=True)
        if read.returncode != 0:
            self.skipTest(f"no Python with yaml: {read.stderr[-200:]}")
        service, secret, job = json.loads(read.stdout)
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        environment = {one["name"]: one.get("value", secret["stringData"]["key"]) for one in container["env"]}
        # The name of pod 0 in the headless service: <job>-<index>.<service>.
        self.assertEqual(environment["MASTER_ADDR"], f"{job['metadata']['name']}-0.{service['metadata']['name']}")
        self.assertEqual((pod["subdomain"], service["spec"]["clusterIP"]), (service["metadata"]["name"], "None"))
        self.assertEqual(service["spec"]["selector"], {"job-name": job["metadata"]["name"]})
        self.assertEqual(int(environment["WORLD_SIZE"]), job["spec"]["completions"])
        environment.update(MASTER_ADDR="127.0.0.1", KUBERNETES_SERVICE_HOST="10.0.0.1")
        said = self.run_all([(container["command"] + ["--set", "parallelism.transport=tcp"], {**environment, "JOB_COMPLETION_INDEX": str(index)})
                             for index in range(job["spec"]["completions"])])
        self.assertIn("2 ranks", said)
        self.check_losses("on-kubernetes")


if __name__ == "__main__":
    unittest.main()
