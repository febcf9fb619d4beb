"""Runs the commands that the pages show, in the order of the pages, on shortened jobs: a command that is documented works.

    documented_commands_test.py SOURCE BUILD PYTHON [PAGE ...]

Every line of a fenced `sh` block of README.md, examples/*/README.md, CONTRIBUTING.md, docs/**.md and bench/peers/README.md (or of the PAGEs) is run in a scratch folder that sees the
examples and the data of the source tree; training on tokens takes a few steps on small data, a bench 64 MiB at most and few sizes. `shoal` is the program that `make install` of BUILD puts on the PATH; other programs come from BUILD.
Of a test program the tests are listed that it would run: ctest runs them beside this test.
`make train` and `make install` are run; of other goals `make` is asked what it would do (`make test` would start this test), and for `make bench` which cases it would run. `pip install`, `python` and the Python of docs/pytorch.md run in PYTHON, where that has a whole PyTorch.
A `toml` block whose first line is a comment with the name of a file, `# name.toml`, is saved under this name before the commands of its page run.
Results that a page shows below commands that were not shortened (accuracies, errors, memory) must come out again, in their order and within 5 %; what programs print that count and draw, letter for letter.
Pictures of a page that lie in plots/ must be those that its commands draw.
Scripts for several machines are `bash` blocks, which several_machines_test.py runs.
"""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

STEPS = 6
SHORTER = ["--set", f"training.steps={STEPS}", "--set", "validation.interval=3", "--set", "checkpoint.interval=3", "--set", "lr_scheduler.warmup_steps=1",
           "--set", "training.global_batch_sequences=2", "--set", "training.sequence_length=64",
           "--set", "validation.batches=1", "--set", "validation.sample_tokens=20"]
SHORTER_MODEL = ["--set", "model.layers=1"]
# A job that trains on tokens says one of these.
TOKENS = re.compile(r'^(source = "tokens"|folders = )', re.M)
# One that starts from a model has its shape.
FROM = re.compile(r"^from = ", re.M)
# These take seconds, and run as they are.
SHORT_JOBS = re.compile(r"examples/(09|10|11|12)_")
RESULT = re.compile(r"validation: |split: | kB( |$)|after \d+ steps|holds \d|a step, loss|^ *\d+ +\d+\.\d{4}|^runs/.* \.\.\. ")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
# What is another one each time: drawings of a step, times, and, at the end of a line of compare.py, by how much roundings differ.
VARYING = re.compile(r"\|.*\||\d+ ms|\S+ +\d\.\de[-+]\d\d$")
# What these print is the same on every machine.
EXACT = ("draw_cut", "ring_by_hand", "--mesh")
PROGRAMS = "build/release/bin/"
# Run as they are.
SYSTEM = ("cat", "export", "head", "ls", "tail")
# Prints "losses alike" where TensorBoard's own reader finds in every run of a folder what metrics.jsonl says, rounded to float32, the job, and the picture of memory.
TENSORBOARD = """
import json, pathlib, struct, sys, zlib
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

def rows(png):
    # The rows of an unfiltered PNG of 8-bit colours, every checksum looked at.
    assert png[:8] == b"\\x89PNG\\r\\n\\x1a\\n" and png[24:29] == b"\\x08\\x02\\0\\0\\0"
    (width, height), at, packed = struct.unpack(">II", png[16:24]), 8, b""
    while at < len(png):
        length, name = struct.unpack(">I4s", png[at:at + 8])
        assert struct.pack(">I", zlib.crc32(png[at + 4:at + 8 + length])) == png[at + 8 + length:at + 12 + length], name
        packed += png[at + 8:at + 8 + length] if name == b"IDAT" else b""
        at += 12 + length
    data, row = zlib.decompress(packed), 1 + 3 * width
    assert len(data) == row * height and not any(data[::row])
    return [data[y * row + 1:(y + 1) * row] for y in range(height)]

for run in pathlib.Path(sys.argv[1]).glob("*/tensorboard"):
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    shown = {event.step: event.value for event in events.Scalars("train/loss")}
    told = {line["step"]: line["loss"] for line in map(json.loads, open(run.parent / "metrics.jsonl"))}
    assert shown.keys() == told.keys(), (run, shown.keys() ^ told.keys())
    assert all(abs(shown[step] - told[step]) <= 1e-6 * abs(told[step]) for step in told), run
    # Markdown shows what is indented as it is.
    job = events.Tensors("job")[-1].tensor_proto.string_val[0].decode()
    assert "".join(line[4:] for line in job.splitlines(keepends=True)) == open(run.parent / "config.toml").read(), run
    assert events.summary_metadata["job"].plugin_data.plugin_name == "text", run
    if (run.parent / "memory.svg").exists():
        picture = rows(events.Images("memory")[-1].encoded_image_string)
        # Something is there from the beginning of a step to its end, at the bottom, and the axis ends above all.
        pixels = [[row[x:x + 3] != b"\\xff\\xff\\xff" for x in range(0, len(row), 3)] for row in picture]
        assert len(picture) == 320 and len(pixels[-1]) == 640 and all(pixels[-1]) and not any(pixels[0]), run
print("losses alike")
"""
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def commands_of(block):
    """Each command of a `sh` block as a list of words; `a && b` are two. A command ends with its line, unless a quotation goes on."""
    text = ""
    for line in block.replace("\\\n", " ").splitlines():
        text += line + "\n"
        try:
            parsed = shlex.split(text, comments=True)
        except ValueError:
            continue
        text, words = "", []
        for word in [*parsed, "&&"]:
            if word != "&&":
                words.append(word)
            elif words:
                yield words
                words = []


def commands(page):
    return (words for block in blocks(page, "sh") for words in commands_of(block))


def text_blocks(page):
    """The page's `text` blocks, each with the commands of the last `sh` block before it."""
    words = []
    for language, text in re.findall(r"^```(sh|text)\n(.*?)^```", page.read_text(), re.M | re.S):
        if language == "sh":
            words = list(commands_of(text))
        else:
            yield words, text


def exact_blocks(page):
    """The `text` blocks that commands must print letter for letter: each is the first below its commands."""
    above = None
    for commands_before, text in text_blocks(page):
        if commands_before is not above and any(word.removeprefix(PROGRAMS) in EXACT for words in commands_before for word in words):
            yield text
        above = commands_before


def results(page, is_shortened):
    """The lines with results of each `text` block, but for blocks below a shortened command."""
    for commands_before, text in text_blocks(page):
        if not any(is_shortened(words) for words in commands_before):
            yield [line for line in text.splitlines() if RESULT.search(line)]


def same_result(line, printed):
    """Whether two lines have the same words, and the same numbers within 5 %, but for what varies."""
    line, printed = (VARYING.sub("", one.rstrip()) for one in (line, printed))
    if NUMBER.sub("#", line).split() != NUMBER.sub("#", printed).split():
        return False
    numbers, others = ([float(number) for number in NUMBER.findall(one)] for one in (line, printed))
    return all(abs(a - b) <= 0.05 * abs(a) for a, b in zip(numbers, others))


def missing(lines, printed):
    """The first of `lines` that `printed` does not have behind the ones before it, or None."""
    following = iter(printed.splitlines())
    return next((line for line in lines if not any(same_result(line, other) for other in following)), None)


class Tree:
    """Where the commands run, and what each of them becomes there."""

    def __init__(self, source, build, python, folder):
        self.source, self.build, self.python, self.folder = source, build, python, folder
        for name in ("bench", "docs", "examples", "data", "python"):
            pathlib.Path(folder, name).symlink_to(source / name)
        pathlib.Path(folder, "build").mkdir()
        pathlib.Path(folder, "build", "torch-path").write_text((source / "build" / "torch-path").read_text())
        self.environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
        self.environment["PATH"] = f"{folder}/installed/bin:{self.environment['PATH']}"
        self.environment["PYTHONPATH"] = f"{folder}/site"
        subprocess.run(self.install(), check=True, stdout=subprocess.DEVNULL)
        self.documented_steps = int(re.search(r"^steps = (\d+)", (source / "examples/03_gpt_on_headers/job.toml").read_text(), re.M)[1])
        probe = "import numpy, torch; assert torch.__version__.startswith('2.11')"
        self.whole_torch = subprocess.run([python, "-c", probe], capture_output=True).returncode == 0

    def install(self):
        return ["cmake", "--install", str(self.build), "--prefix", f"{self.folder}/installed"]

    def save_jobs(self, page):
        for text in blocks(page, "toml"):
            if name := re.match(r"# (\w+\.toml)\b", text):
                pathlib.Path(self.folder, name[1]).write_text(text)

    def shortened(self, words):
        """The arguments of shoal, for a job of a few steps."""
        if words[0] == "train" and "--help-config" not in words:
            job = next(word for word in words if word.endswith(".toml"))
            text = pathlib.Path(self.folder, job).read_text()
            if not TOKENS.search(text) or SHORT_JOBS.match(job):
                return words
            return words + (SHORTER + SHORTER_MODEL if not FROM.search(text) else SHORTER)
        if words[0] == "generate":
            return words + ["--tokens", "10"] if "--tokens" not in words else words
        if words[0] == "bench":
            shorter = [re.sub(r"^\d{9,}$", "67108864", word) for word in words] + ["--seconds", "0.01"]
            # Every size up to 1 MiB takes 1000 calls.
            many = words[1] == "collectives" and "--bytes" in words and "--factor" not in words
            return shorter + (["--factor", "1024"] if many else [])
        return [re.sub(r"step-(\d+)$", lambda step: f"step-{int(step[1]) * STEPS // self.documented_steps}", word) for word in words]

    def is_shortened(self, words):
        return any(SHORTER[1] in str(word) for word in self.here(words)[0] or [])

    def as_typed(self, words):
        """What checks the documented job and trains nothing."""
        start = words.index(SHORTER[1]) - 1
        return [*words[:start], "--print-config"]

    def here(self, words):
        """What is run for a documented command, and a pattern that its output must contain; None where it cannot run."""
        program, rest = words[0].removeprefix("~/tensorboard/bin/"), words[1:]
        if ASSIGNMENT.match(program):
            started, expected = self.here(rest)
            return (["env", program, *started] if started else None), expected
        if program == "shoal":
            return [program, *self.shortened(rest)], ""
        if program in SYSTEM:
            return ["bash", "-c", shlex.join(words)], ""
        if program == "tensorboard":
            return self.tensorboard(rest)
        if program.startswith("build/own_model/"):
            return [f"{self.folder}/{program}", *rest], ""
        if program.startswith(PROGRAMS):
            name = program.removeprefix(PROGRAMS)
            if name.endswith("_test"):
                return [self.build / "bin" / name, *rest, "--gtest_list_tests"], r"(?m)^\S+\.$\n  \S"
            if name == "lending_times":
                return [self.build / "bin" / name, *(re.sub(r"^12$", "1", word) for word in rest)], ""
            if name == "wan_bench":
                if os.geteuid() != 0:
                    return None, "needs root, for network namespaces"
                return [self.build / "bin" / name, *(re.sub(r"^1000$", "4", word) for word in rest)], ""
            return [self.build / "bin" / name, *rest], ""
        if program == "." or words[:3] == ["python3", "-m", "venv"]:
            return None, "PYTHON is in a virtual environment"
        if program == "python3":
            return [sys.executable, *rest], ""
        if program == "mpirun":
            if not (self.build / "bin" / "mpi_engine_test").exists():
                return None, "needs a build with MPI"
            if "ofi" in rest and not self.reaches_libfabric():
                return None, "needs an Open MPI with libfabric"
            program = rest.index("shoal")
            started, expected = self.here(rest[program:])
            return ["mpirun", "--oversubscribe", "--allow-run-as-root", *rest[:program], *started], expected
        if program == "cmake":
            rest = [word.replace("$HOME/.local", f"{self.folder}/installed") for word in rest]
            return ["cmake", *shlex.split(shlex.join(rest).replace("--preset release", shlex.quote(str(self.build))))], ""
        if program == "make" and rest[:1] in (["train"], ["install"]) and self.build == self.source / "build" / "release":
            # It builds there, and trains and installs here.
            shorter = [f"SHOAL=cd {self.folder} && {self.build}/bin/shoal", f"ARGS={shlex.join(SHORTER + SHORTER_MODEL)}"]
            more, expected = (shorter, "") if rest[0] == "train" else ([f"PREFIX={self.folder}/installed"], r"shoal is in ")
            return ["make", "-C", self.source, *rest, *more], expected
        if program == "make":
            cases = [word.removeprefix("CASES=") for word in rest if word.startswith("CASES=")]
            if cases:
                return [sys.executable, self.source / "bench" / "run.py", "--list", *shlex.split(cases[0])], "/"
            return ["make", "-n", "-C", self.source, *rest], r"\S"
        if program in ("git", "cd"):
            return None, "is where the clone is already"
        if program == "pip" and "./python" not in rest:
            return None, "would download it"
        if program in ("pip", "python") and not self.whole_torch:
            return None, "needs a Python with a whole PyTorch"
        if program == "pip":
            if (pathlib.Path(self.folder) / "site").exists():
                return None, "an earlier page has installed it"
            return [self.python, "-m", "pip", *rest, "--no-deps", "--target", f"{self.folder}/site"], "Successfully"
        if program == "python":
            return [self.python, *rest], ""
        raise SystemExit(f"this test does not know how to run {program}")

    def reaches_libfabric(self):
        try:
            return "MCA mtl: ofi" in subprocess.run(["ompi_info"], capture_output=True, text=True).stdout
        except OSError:
            return False

    def tensorboard(self, words):
        """What `tensorboard --logdir FOLDER` shows must be what metrics.jsonl says: its own reader finds each step and loss."""
        folder = words[words.index("--logdir") + 1]
        if not list(pathlib.Path(self.folder, folder).glob("*/tensorboard")):
            return None, "a later page runs it, when something has been trained"
        there = subprocess.run([self.python, "-c", "import tensorboard"], capture_output=True).returncode == 0
        return ([self.python, "-c", TENSORBOARD, folder], "losses alike") if there else (None, "needs a Python with TensorBoard")

    def snippet(self, text):
        """A Python block of docs/pytorch.md: by itself where it says what it prints, else as one rank of one."""
        prints = re.search(r"# prints (.*)$", text, re.M)
        if prints and self.whole_torch:
            return [self.python, "-c", text], re.escape(prints[1])
        program = "import os\nos.environ.update(RANK='0', WORLD_SIZE='1', MASTER_ADDR='127.0.0.1', MASTER_PORT='0')\n" + text + "\nprint(dist.get_backend())"
        return ([self.python, "-c", program], "shoal") if self.whole_torch else (None, "needs a Python with a whole PyTorch")

    def run(self, words):
        try:
            return subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True, errors="replace", timeout=400)
        except OSError as error:
            return subprocess.CompletedProcess(words, 127, "", str(error))


def pages(source):
    yield source / "README.md"
    yield from sorted(source.glob("examples/*/README.md"))
    yield source / "CONTRIBUTING.md"
    yield from sorted(source.glob("docs/**/*.md"))
    yield source / "bench" / "peers" / "README.md"


def main():
    source, build = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    failures, count = [], 0
    must_run = "documented_commands_test" in os.environ.get("SHOAL_MUST_RUN", "").split()
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(source, build, sys.argv[3], folder)
        for page in [source / name for name in sys.argv[4:]] or pages(source):
            tree.save_jobs(page)
            todo = [(shlex.join(words), *tree.here(words)) for words in commands(page)]
            if page.name == "pytorch.md":
                todo += [(json.dumps(text), *tree.snippet(text)) for text in blocks(page, "python")]
            printed = ""
            for documented, words, expected in todo:
                shown = f"{page.relative_to(source)}: {documented}"
                if words is None:
                    print(f"NOT RUN ({expected})  {shown}", flush=True)
                    # tools/setup_python.sh makes such a Python.
                    if must_run and expected.startswith("needs a Python with"):
                        failures.append(f"{shown}\nNOT RUN: {expected}, and SHOAL_MUST_RUN names this test")
                    continue
                begin = time.monotonic()
                for _ in range(4):
                    # A job that is shortened might hide that the one on the page is refused.
                    done = tree.run(tree.as_typed(words)) if SHORTER[1] in words else None
                    if done and done.returncode:
                        break
                    done = tree.run(words)
                    # Gloo's own end, about 1 in 15, as the page says.
                    if not ("--keep-gloo" in documented and "terminate called without an active exception" in done.stderr):
                        break
                count += 1
                printed += done.stdout
                # As diff does, `ckpt diff` ends with 1 where something differs.
                good = done.returncode == ("ckpt diff" in documented) and re.search(expected, done.stdout)
                print(f"{'ok' if good else 'FAILED'} {time.monotonic() - begin:6.1f} s  {shown}", flush=True)
                if not good:
                    failures.append(f"{shown}\n{' '.join(map(str, words))}\nexit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
            for picture in re.findall(r"^!\[[^\]]*\]\((plots/\w+\.svg)\)", page.read_text(), re.M):
                drawn = pathlib.Path(folder, picture)
                same = drawn.exists() and drawn.read_text() == (page.parent / picture).read_text()
                print(f"{'ok' if same else 'FAILED'}  {page.relative_to(source)} shows {picture}", flush=True)
                if not same:
                    failures.append(f"{page.relative_to(source)}: the commands of the page (--plots plots) do not draw {picture} as it is there")
            # README.md shows what `make train` prints, which example 03 shows too.
            checked = page.parent.parent.name == "examples" or "docs" in page.relative_to(source).parts
            shown_results = results(page, tree.is_shortened) if checked else []
            wrong = [(lines, missing(lines, printed)) for lines in shown_results]
            wrong += [(text.splitlines(), None if text in printed else text) for text in exact_blocks(page)]
            for lines, lost in wrong:
                if lines:
                    print(f"{'FAILED' if lost else 'ok'}  {page.relative_to(source)} shows {len(lines)} lines from: {lines[0]}", flush=True)
                if lost:
                    failures.append(f"{page.relative_to(source)} shows this, and no command of it printed it there:\n{lost}\nprinted was\n{printed[-4000:]}")
    for failure in failures:
        print(failure)
    if count == 0:
        sys.exit("no command found: the pages or this test have changed")
    sys.exit(1 if failures else 0)


main()
