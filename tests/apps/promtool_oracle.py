"""What a running job answers on /metrics, as Prometheus's own `promtool check metrics` reads it: no error, no warning. Argument: the program. Exit
code 77 where there is no promtool (Debian: prometheus)."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

from oracle import check

SOURCE = pathlib.Path(__file__).resolve().parents[2]
SETS = ("training.steps=100000", "metrics.prometheus=127.0.0.1:0", "metrics.tensorboard=false", "validation.interval=20", "validation.batches=1",
        "checkpoint.interval=20")


def page(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return answer.read().decode()


def promtool(text):
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


PROMTOOL = shutil.which("promtool", path=f"{os.environ['PATH']}:{SOURCE}/build/peers/prometheus/usr/bin")
if not PROMTOOL:
    print("SKIPPED promtool_test: promtool missing: tools/setup_peers.sh promtool installs it")
    sys.exit(77)
with tempfile.TemporaryDirectory() as folder, open(f"{folder}/said", "w+") as said:
    words = [sys.argv[1], "train", SOURCE / "examples/01_the_training_loop/job.toml", "--nproc", "2", "--run-dir", f"{folder}/run"]
    run = subprocess.Popen([*words, *(word for one in SETS for word in ("--set", one))], cwd=SOURCE, stdout=said, stderr=said)
    try:
        text, end = "", time.monotonic() + 60
        # After a validation and a checkpoint every metric is there that such a run has.
        while not ("shoal_checkpoint_step" in text and "shoal_validation_loss" in text and "shoal_data_wait_seconds" in text):
            printed = pathlib.Path(f"{folder}/said").read_text()
            check(run.poll() is None and time.monotonic() < end, f"no metrics\n{text}\n{printed}")
            if address := re.search(r"http://([\d.:]+)/metrics", printed):
                text = page(address[1])
            time.sleep(0.1)
    finally:
        run.terminate()
        run.wait(timeout=60)
code, words = promtool(text)
check(code == 0 and not words, f"promtool ends with {code}: {words}\n{text}")
# It does read the page.
check(promtool(text.replace("shoal_tokens_total counter", "shoal_tokens_total gauge"))[0] != 0, "promtool finds no fault in a wrong page")
