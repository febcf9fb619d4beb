"""The page about Slurm on Slurm itself, two nodes of it: its script trains, a job that is told that its time ends is queued again and goes on, and
`python -m shoal.run` finds its ranks. Exit code 77, with the reason, where no such cluster can be started.

    slurm_test.py SOURCE BUILD PYTHON
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

from slurm_cluster import Cluster, obstacle

PYTHON, BUILD, SOURCE = sys.argv.pop(), pathlib.Path(sys.argv.pop()).resolve(), pathlib.Path(sys.argv.pop()).resolve()
STEPS = 40000  # of the run that is queued again: more than it trains before it is told


class SlurmTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # Ranks that are cancelled write until they end: the folder goes behind them.
        self.addCleanup(self.end_jobs)
        for name in ("examples", "data"):
            (self.folder / name).symlink_to(SOURCE / name)
        program = self.folder / "bin" / "shoal"
        program.parent.mkdir()
        program.write_text(f'#!/usr/bin/env bash\nexec "{BUILD}/bin/shoal" "$@" --set parallelism.transport=tcp --set training.steps="$STEPS"'
                           ' --set checkpoint.interval=0 --set validation.interval=0\n')
        program.chmod(0o755)
        page = (SOURCE / "docs" / "how_to" / "slurm.md").read_text()
        (script,) = re.findall(r"^```bash\n(.*?)^```", page, re.M | re.S)
        (self.folder / "train.sbatch").write_text(script)
        self.assertIn("`sbatch train.sbatch`", page)

    def slurm(self, *words, **environment):
        path = f"{self.folder}/bin:{CLUSTER.environment()['PATH']}"
        done = CLUSTER.run(*words, cwd=self.folder, PATH=path, **environment)
        self.assertEqual(done.returncode, 0, f"{words}: {done.stdout}{done.stderr}{self.printed()}")
        return done.stdout

    def printed(self):
        return "".join(path.read_text() for path in self.folder.glob("slurm-*.out"))

    def metrics(self):
        path = self.folder / "runs" / "on-slurm" / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, condition, what):
        end = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), end, f"{what} does not come\n{self.printed()}\n{self.slurm('scontrol', 'show', 'job')}")
            time.sleep(0.1)

    def end_jobs(self):
        self.slurm("scancel", "--user=root")
        self.wait_for(lambda: not self.slurm("squeue", "--noheader").strip(), "the end of all jobs")

    def test_the_script_of_the_page(self):
        self.slurm("sbatch", "--wait", "train.sbatch", STEPS="60")
        self.assertEqual([line["step"] for line in self.metrics()], list(range(1, 61)))
        self.assertIn("2 ranks of ", self.printed())
        self.assertIn("started by Slurm", self.printed())

    def test_a_job_whose_time_ends_is_queued_again_and_goes_on(self):
        job = re.search(r"\d+", self.slurm("sbatch", "train.sbatch", STEPS=str(STEPS)))[0]
        self.wait_for(lambda: len(self.metrics()) > 20, "step 20")
        # As Slurm does two minutes before the end (--signal=USR1@120).
        self.slurm("scancel", "--signal=USR1", job)
        self.wait_for(lambda: "Restarts=1" in self.slurm("scontrol", "show", "job", job), "a second start")
        self.assertIn(f"Slurm is asked to start job {job} again", self.printed())
        trained = self.metrics()[-1]["step"]
        self.assertLess(trained, STEPS)
        self.wait_for(lambda: "JobState=PENDING" in self.slurm("scontrol", "show", "job", job), "the queue")
        self.slurm("scontrol", "update", f"JobId={job}", "StartTime=now")  # Slurm itself waits two minutes
        self.wait_for(lambda: self.metrics()[-1]["step"] > trained + 20, "more steps")
        self.slurm("scancel", job)
        self.assertIn(f"(step {trained} of {STEPS})", self.printed())
        steps = [line["step"] for line in self.metrics()]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_python(self):
        """Two tasks, each the launcher of two ranks."""
        if subprocess.run([PYTHON, "-c", "import torch.distributed, shoal"], env={"PYTHONPATH": f"{BUILD}/python"}, capture_output=True).returncode:
            self.skipTest(f"{PYTHON} cannot import PyTorch and shoal")
        said = self.slurm("srun", "-N", "2", "--ntasks-per-node", "1", "--cpus-per-task", "2", PYTHON, "-m", "shoal.run", "--nproc", "2",
                          "examples/14_pytorch_script/train.py", PYTHONPATH=f"{BUILD}/python", SHOAL_TRANSPORT="tcp")
        self.assertEqual(len(re.findall(r"^\[0\] step \d+: loss [\d.]+$", said, re.M)), 4, said)


if __name__ == "__main__":
    reason = obstacle()
    with tempfile.TemporaryDirectory(prefix="shoal-slurm-") as place:
        CLUSTER = Cluster(pathlib.Path(place) / "cluster")
        try:
            reason = reason or CLUSTER.start()
            if reason:
                print(f"SKIPPED slurm_test: {reason}")
                sys.exit(77)
            outcome = unittest.main(exit=False, verbosity=2).result
        finally:
            CLUSTER.stop()
    sys.exit(not outcome.wasSuccessful())
