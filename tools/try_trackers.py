#!/usr/bin/env python3
"""Runs the programs of docs/how_to/see_a_run.md for MLflow and Weights & Biases on a run's metrics.jsonl, and compares what the two have stored with it.

    tools/try_trackers.py [RUN]

Without RUN it takes a made-up run of three steps. The packages are installed into build/trackers/venv the first time (170 MB). Not part of CI.
"""
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
VENV = ROOT / "build" / "trackers" / "venv"
PACKAGES = ("mlflow==3.17.2", "wandb==0.31.0")
STEPS = [{"step": step, "loss": 4 / step, "grad_norm": None if step == 2 else 0.5, "lr": 1e-3} for step in (1, 2, 3)]


def install():
    """Makes the virtual environment unless it is there, and goes on in its Python."""
    stamp = VENV / "packages"
    if not stamp.exists() or stamp.read_text() != str(PACKAGES):
        print(f"try_trackers: making {VENV} (170 MB to download)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
        subprocess.run([VENV / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
        stamp.write_text(str(PACKAGES))
    if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
        sys.exit(subprocess.run([VENV / "bin" / "python", "-B", *sys.argv]).returncode)


def in_mlflow():
    """{step: loss}"""
    import mlflow
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    client = mlflow.MlflowClient()
    [run] = client.search_runs([client.get_experiment_by_name("shoal").experiment_id])
    return {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "loss")}


def in_wandb():
    """{step: loss}"""
    from wandb.proto import wandb_internal_pb2
    [file] = pathlib.Path().glob("wandb/offline-run-*/*.wandb")
    # LevelDB's log format behind a header of 7 bytes: blocks of 32 KiB, records of a checksum (4 bytes), a length (2) and a kind (1: first part ... 4: whole).
    data, at, whole, found = file.read_bytes(), 7, b"", {}
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4:at + 7])
        part = data[at + 7:at + 7 + length]
        at += 7 + length
        whole = part if kind in (1, 2) else whole + part
        if kind in (1, 4):
            record = wandb_internal_pb2.Record.FromString(whole)
            if record.WhichOneof("record_type") == "history":
                row = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
                found[row["step"]] = row["loss"]
    return found


def main():
    install()
    run = pathlib.Path(sys.argv[1]).resolve() if sys.argv[1:] else None
    programs = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "how_to" / "see_a_run.md").read_text(), re.M | re.S)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        place = pathlib.Path("runs/digits")
        if run:
            place.parent.mkdir()
            place.symlink_to(run)
        else:
            place.mkdir(parents=True)
            (place / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in STEPS))
            (place / "config.toml").write_text("")
        for program in programs:
            subprocess.run([sys.executable, "-c", program], check=True)
        told = {step["step"]: step["loss"] for step in map(json.loads, (place / "metrics.jsonl").open())}
        for name, found in (("MLflow", in_mlflow()), ("Weights & Biases", in_wandb())):
            if found != told:
                sys.exit(f"{name} has other losses: {found}, not {told}")
            print(f"{name}: {len(found)} losses, those of metrics.jsonl")
        os.chdir("/")


main()
