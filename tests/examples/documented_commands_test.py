"""Runs the commands that the pages show, in the order of the pages, on shortened jobs: a command that is documented works.

    documented_commands_test.py SOURCE BUILD

Every line of a fenced `sh` block of README.md and examples/*/README.md that starts with build/release/bin/shoal is run in a scratch folder that sees the examples and
the data of the source tree; training takes a few steps on small data. `make` lines are held to the Makefile by tools/check_docs.py.
"""
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

SHORTER = ["--set", "training.steps=6", "--set", "validation.interval=3", "--set", "checkpoint.interval=3", "--set", "lr_scheduler.warmup_steps=1"]
SHORTER_TOKENS = ["--set", "training.global_batch_sequences=2", "--set", "training.sequence_length=64", "--set", "model.layers=1",
                  "--set", "validation.batches=1", "--set", "validation.sample_tokens=20"]


def commands(page):
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] in ("build/release/bin/shoal", "python3"):
                yield words


def shortened(words, source):
    if words[0] == "train" and "--help-config" not in words:
        job = next(word for word in words if word.endswith(".toml"))
        text = (source / job).read_text()
        return words + SHORTER + (SHORTER_TOKENS if 'source = "tokens"' in text else [])
    if words[0] == "generate":
        return words + ["--tokens", "10"] if "--tokens" not in words else words
    if words[0] == "bench":
        return words + ["--seconds", "0.01"]
    return words


def main():
    source, build = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    pages = [source / "README.md", *sorted(source.glob("examples/*/README.md"))]
    failures, count = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for name in ("examples", "data"):
            pathlib.Path(folder, name).symlink_to(source / name)
        pathlib.Path(folder, "build").mkdir()
        pathlib.Path(folder, "build", "torch-path").write_text((source / "build" / "torch-path").read_text())
        for page in pages:
            for words in commands(page):
                program = [sys.executable] if words[0] == "python3" else [build / "bin" / "shoal"]
                words = words[1:] if words[0] == "python3" else shortened(words[1:], source)
                done = subprocess.run([*program, *words], cwd=folder, capture_output=True, text=True, errors="replace", timeout=200)
                count += 1
                shown = f"{page.relative_to(source)}: {program[0]} {' '.join(words)}"
                print(f"{'ok' if done.returncode == 0 else 'FAILED'}  {shown}", flush=True)
                if done.returncode != 0:
                    failures.append(f"{shown}\nexit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    for failure in failures:
        print(failure)
    if count == 0:
        sys.exit("no command found: the pages or this test have changed")
    sys.exit(1 if failures else 0)


main()
