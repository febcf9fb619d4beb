#!/usr/bin/env python3
"""Two members that train one job over a long link (bench/wire/over_wan.cpp), each `shoal train` at a site of its own, on a core of its own: DiLoCo and
streaming DiLoCo beside the same job with a sum of gradients in every step.

Both rates and the round trip are those of the link: 100 Mbit/s in each direction, or 10, and 50 ms. Connections are encrypted. All figures are of one
period, in which each parameter is exchanged once, after some steps to begin with; the synchronous run's are of a few steps.
    computing    the part of the time in which the members compute: 1 - the sum of `comm_exposed_s` of the steps over the time from the first to the
                 last. By that counter a rank waits, encodes, decodes and sums. The peer is all of the time, and the limit 95 %.
    bytes        that the link carries in one direction, with all headers, acknowledgements and signs of life, for each token that the members train;
                 the peer is the synchronous run.
    peak         the most bytes that the link carries in a second and one direction: of the streaming run, beside DiLoCo's.
    planned      the part of the time in which the members compute, as `shoal plan` says from the link and the time of a step that needs no exchange,
                 beside the one measured.
joining: a member of an elastic group that trains GPT-2 with 124M parameters in rounds, while another one at the other site joins it: the median time
of its steps alone (the peer) and while its state crosses the link, twelve times in turn, and the limit 1.1 times as long. The state is anchor and
momentum, eight bytes a parameter; the joiners are killed in the middle of it, and the last one takes all of it.
loss: a small Llama that learns the header corpus from the same samples until it hardly learns more, with members that send 4,000 times fewer bytes and
without, three seeds each: the mean loss of the held-out files. The peer is the synchronous run; the spread is how far the losses of its seeds are
apart, as a part of their mean, and the limit of DiLoCo is a mean that is higher by no more. In shorter runs each member learns from too few samples.
bench/run.py says how this program is called.
"""
import functools
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "peers"))
import comparison  # noqa: E402

# DiLoCo's paper has 500 steps between exchanges, and tries 50 to 2,000. With the 4.125 bits a value of this codec 516 would send 4,000 times fewer
# bytes, if steps without an exchange sent nothing.
EVERY, FRAGMENTS, OVERLAP = 600, 16, 5
CODEC = "e3m0"
WARMUP = 12  # steps before the period that is measured
SYNCHRONOUS_STEPS = 5
ROUND_TRIP_MS = 50
TOKENS = 128  # of a step of both members
CLUSTER = """
preset = "cpu"
runtime = "shoal"
hosts = 2
devices_per_host = 1
[device.efficiency]
link_between = 1.0
[between]
latency_s = {latency}
bandwidth = {bandwidth}
"""
# Behind each job: nothing but steps, and an evaluation of so many batches at the end.
STEPS_ALONE = """
[checkpoint]
interval = 0
at_end = false
[validation]
interval = 0
batches = {batches}
[metrics]
tensorboard = false
"""
WIRE_JOB = """
[model]
name = "gpt2-30m"
vocab = 0
[data]
source = "tokens"
folders = ["{folder}/text"]
[training]
global_batch_sequences = 2
sequence_length = 64
steps = {steps}
[lr_scheduler]
warmup_steps = 0
[parallelism]
ranks = 2
threads_per_rank = 1
transport = "tcp"
tls = "on"
{members}
"""
DILOCO = """
[low_communication]
method = "diloco"
every = {every}
codec = "{codec}"
"""
STREAMING = """
[low_communication]
method = "streaming_diloco"
every = {every}
codec = "{codec}"
fragments = {fragments}
overlap_steps = {overlap}
"""
# What a member does alone and while it gives its state to a joiner is measured in turn, because the speed of a machine that others share
# changes within minutes: so many steps alone, then a joiner, which is killed after so many of its state's; the last one joins.
JOIN_TURNS, JOIN_STEPS, JOIN_STEPS_BESIDE = 12, 8, 10
# The longest that its state may take at 100 Mbit/s and in steps of a second.
JOIN_MOST_STEPS = 300
JOIN_JOB = """
[job]
name = "joining"
[model]
name = "gpt2-124m"
vocab = 50257
[data]
source = "tokens"
folders = ["{folder}/text"]
[training]
global_batch_sequences = 1
micro_batch = 1
sequence_length = 64
steps = 1000000
[lr_scheduler]
name = "constant"
warmup_steps = 0
[parallelism]
threads_per_rank = 1
[low_communication]
method = "diloco"
every = 1000000
[elastic]
enabled = true
key_file = "{folder}/key"
"""
# The site of the member, and that of the joiners, of which the last one ends the member too. Files say by their times when something happened.
JOIN_SITES = """
train() {{ exec taskset -c $1 {shoal} train {folder}/joining.toml --run-dir {run}-$2 --set elastic.listen=$SITE_OWN "${{@:3}}"; }}
lines() {{ cat {run}-0/metrics.jsonl 2>/dev/null | wc -l; }}
member() {{ kill -0 $(cat {run}.pid); }}
until_lines() {{ until [ $(lines) -ge $1 ]; do member || exit 1; sleep 0.1; done; }}
if [ $SITE = 0 ]; then
    train {cores[0]} 0 &
    echo $! > {run}.pid
    wait
    exit 0
fi
until [ -s {run}.pid ]; do sleep 0.1; done
until_lines 3
for turn in $(seq {turns}); do
    touch {run}-alone-$turn
    until_lines $(($(lines) + {steps}))
    touch {run}-begin-$turn
    train {cores[1]} $turn --join $(head -1 {run}-0/address) &
    joiner=$!
    if [ $turn -lt {turns} ]; then
        # Its start and the copy of the state take some steps too.
        until_lines $(($(lines) + 10 + {beside}))
    else
        most=$(($(lines) + {most}))
        until [ -e {run}-$turn/address ] || [ $(lines) -ge $most ] || ! kill -0 $joiner || ! member; do sleep 0.1; done
        [ -e {run}-$turn/address ] || echo "it has not joined"
    fi
    touch {run}-end-$turn
    kill -KILL $joiner
    wait $joiner
done
kill -KILL $(cat {run}.pid)
wait
exit 0
"""
# The loss of runs that two cores make in two minutes: 24 exchanges.
SEEDS = (1, 2, 3)
LOSS_STEPS, LOSS_EVERY, LOSS_OVERLAP = 12480, 520, 5
LOSS_CODEC = "i4"  # which learns more than e3m0 with as many bits
LOSS_JOB = """
[model]
name = "llama-tiny"
layers = 1
hidden = 16
heads = 2
kv_heads = 2
ffn = 48
vocab = 0
tied_embeddings = false
init_std = 0.06
[data]
source = "tokens"
folders = ["{folder}/headers"]
[training]
global_batch_sequences = 64
sequence_length = 64
steps = {steps}
[optimizer]
learning_rate = 3e-3
[lr_scheduler]
name = "wsd"
warmup_steps = 50
decay_fraction = 0.4
final_ratio = 0.02
[parallelism]
ranks = 2
threads_per_rank = 1
{members}
"""
# The outer optimizer's momentum of 0.9 is for runs of hundreds of exchanges.
LOSS_MEMBERS = {"synchronous": "", "diloco": "momentum = 0.8\n", "streaming": "momentum = 0.8\n"}


def members_of(method, every, overlap, codec=CODEC):
    text = {"synchronous": "", "diloco": DILOCO, "streaming": STREAMING}[method]
    return text.format(every=every, codec=codec, fragments=FRAGMENTS, overlap=overlap)


def shoal(*words, cwd, timeout=900):
    program = comparison.ROOT / "build" / "release" / "bin" / "shoal"
    if not program.exists():
        raise comparison.Failed(f"{program} is not built")
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, cwd=cwd, timeout=timeout)
    if done.returncode != 0:
        raise comparison.Failed(f"shoal {words[0]}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


class Steps:
    """When the lines of metrics.jsonl were written, on the clock of over_wan."""

    def __init__(self, path):
        self.path, self.times, self.lines, self.over = path, [], [], threading.Event()
        self.thread = threading.Thread(target=self.follow)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def follow(self):
        rest, file = "", None
        while True:
            last = self.over.is_set()
            if file is None and self.path.exists():
                file = self.path.open()
            rest += file.read() if file else ""
            *whole, rest = rest.split("\n")
            self.times += [time.monotonic()] * len(whole)
            self.lines += [json.loads(line) for line in whole]
            if last:
                return
            time.sleep(0.01)


class Period:
    """The steps first + 1 to last of a run over the link."""

    def __init__(self, steps, counts, first, last):
        self.steps = last - first
        # Members report a step in the next one, all of them alike.
        begin, end = steps.times[first - 1], steps.times[last - 1]
        self.seconds = end - begin
        # A line has the wait of the step before it.
        self.waited = sum(line["comm_exposed_s"] for line in steps.lines[first + 1:last + 1])
        self.step_s = statistics.median(line["step_s"] for line in steps.lines[first:last])
        inside = [(at, there, back) for at, there, back in counts if begin <= at <= end]
        self.bytes = max(inside[-1][way] - inside[0][way] for way in (1, 2))
        self.peak = {window: self.most_in(inside, window) for window in (0.1, 1, 10)}

    @staticmethod
    def most_in(counts, window):
        """The most bytes of a direction in `window` seconds."""
        most, first = 0, 0
        for at, *bytes_by_way in counts:
            while counts[first][0] < at - window:
                first += 1
            most = max(most, *(now - before for now, before in zip(bytes_by_way, counts[first][1:])))
        return most

    def computing(self):
        return 1 - self.waited / self.seconds

    def bytes_per_token(self):
        return self.bytes / self.steps / TOKENS

    def words(self):
        return {"steps": self.steps, "seconds": self.seconds, "waited_s": self.waited, "median_step_s": self.step_s, "bytes": self.bytes,
                "without_exchange": self.steps * self.step_s / self.seconds, "peak_bytes": self.peak}


class Wire:
    """The runs over the link, each made once."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shoal-members-"))

    @functools.cached_property
    def data(self):
        folder = self.folder / "text"
        shoal("data", "prepare", "--out", folder, "--input", comparison.ROOT / "data" / "text", "--suffix", ".txt", "--tokenizer", "byte",
              cwd=self.folder)
        return folder

    @staticmethod
    def period(method):
        """The steps before the period, and the last one of it."""
        return (2, 2 + SYNCHRONOUS_STEPS) if method == "synchronous" else (WARMUP, WARMUP + EVERY)

    def job(self, method):
        assert self.data
        # A step more: the line of the last one is written in it.
        steps = self.period(method)[1] + 1
        job = self.folder / f"{method}.toml"
        members = members_of(method, EVERY, OVERLAP)
        job.write_text(WIRE_JOB.format(folder=self.folder, steps=steps, members=members) + STEPS_ALONE.format(batches=1))
        return job

    @functools.cache
    def run(self, method, megabits):
        over_wan = comparison.ROOT / "build" / "release" / "bin" / "over_wan"
        program = over_wan.parent / "shoal"
        for one in (over_wan, program):
            if not one.exists():
                raise comparison.Failed(f"{one} is not built")
        run = self.folder / f"{method}-{megabits}"
        counts = self.folder / f"{run.name}.counts"
        cores = sorted(os.sched_getaffinity(0))
        site = f'export RANK=$SITE MASTER_ADDR=$SITE_0; [ $SITE = 0 ] && core={cores[0]} || core={cores[1 % len(cores)]}; exec taskset -c $core "$0" "$@"'
        environment = {**os.environ, "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": run.name,
                       "MASTER_PORT": "29500", "SHOAL_JOB_KEY": "of this measurement"}
        with Steps(run / "metrics.jsonl") as steps, (self.folder / f"{run.name}.said").open("w+") as said:
            command = [over_wan, "--megabits", str(megabits), "--round-trip", str(ROUND_TRIP_MS), "--counts", counts, "--", "sh", "-c", site,
                       program, "train", self.job(method), "--run-dir", run]
            code = subprocess.run(command, stdout=said, stderr=said, env=environment, cwd=self.folder).returncode
            said.seek(0)
            if code != 0:
                raise comparison.Failed(f"{method} over {megabits} Mbit/s:\n{said.read()[-3000:]}")
        moments = [tuple(map(int, line.split())) for line in counts.read_text().splitlines()]
        moments = [(at * 1e-9, there, back) for at, there, back in moments]
        return Period(steps, moments, *self.period(method))


wire = Wire()


def computing(case, method, megabits):
    period = wire.run(method, megabits)
    comparison.emit(case, "% of the time", 100 * period.computing(), 100, period.computing(), None, 0.95, **period.words())


def bytes_sent(case, method):
    ours, peer = (wire.run(one, 100) for one in (method, "synchronous"))
    ratio = peer.bytes_per_token() / ours.bytes_per_token()
    comparison.emit(case, "bytes a token", ours.bytes_per_token(), peer.bytes_per_token(), ratio, None, 4000, synchronous=peer.words())


def peak(case):
    ours, peer = (wire.run(one, 100).peak for one in ("streaming", "diloco"))
    comparison.emit(case, "Mbit/s", ours[1] * 8e-6, peer[1] * 8e-6, peer[1] / ours[1], None, 10, windows=[ours, peer])


def planned(case):
    period = wire.run("diloco", 100)
    cluster = wire.folder / "cluster.toml"
    cluster.write_text(CLUSTER.format(latency=ROUND_TRIP_MS / 2000, bandwidth=100e6 / 8))
    plan = json.loads(shoal("plan", "--model", wire.job("diloco"), "--cluster", cluster, "--json", cwd=wire.folder))
    # The planner is asked for the exchange alone: a step without one is as long as it was.
    exchange_s = EVERY * plan["step_time_parts_s"]["data_exposed"]
    ours = EVERY * period.step_s / (EVERY * period.step_s + exchange_s)
    comparison.emit(case, "% of the time", 100 * ours, 100 * period.computing(), min(ours / period.computing(), period.computing() / ours), None, 0.95,
                    planned_exchange_s=exchange_s)


class JoiningSteps:
    """The times of a member's steps, in turn alone and while its state crosses the link."""

    def __init__(self, run, steps, moments):
        # Files have the time of day.
        since = time.time() - time.monotonic()
        self.at = {path.name.removeprefix(f"{run.name}-"): path.stat().st_mtime - since for path in run.parent.glob(f"{run.name}-*-*")}
        self.steps, self.moments = steps, moments
        turns = range(1, JOIN_TURNS + 1)
        pairs = [(self.between(self.at[f"alone-{turn}"] + 2, self.at[f"begin-{turn}"]), self.between(self.flows_from(turn), self.at[f"end-{turn}"]))
                 for turn in turns]
        # A joiner that takes long to start gets nothing of the state in its turn.
        whole = [pair for pair in pairs if all(pair)]
        if len(whole) < 3 / 4 * JOIN_TURNS:
            raise comparison.Failed(f"turns have no steps: {pairs}")
        self.alone, self.beside = zip(*whole)

    def flows_from(self, turn):
        """When the link carries as much as a state: some megabytes after the joiner's beginning."""
        inside = [one for one in self.moments if one[0] >= self.at[f"begin-{turn}"]]
        return next((at for at, there, _ in inside if there > inside[0][1] + 4e6), float("inf"))

    def between(self, begin, end):
        """Steps that lie wholly between two times."""
        return [line["step_s"] for line, at in zip(self.steps.lines, self.steps.times) if at - line["step_s"] >= begin and at <= end]


def joining(case):
    over_wan = comparison.ROOT / "build" / "release" / "bin" / "over_wan"
    assert wire.data
    run, cores = wire.folder / "joining", sorted(os.sched_getaffinity(0))
    (wire.folder / "key").write_text("of this measurement")
    (wire.folder / "joining.toml").write_text(JOIN_JOB.format(folder=wire.folder) + STEPS_ALONE.format(batches=1))
    script = JOIN_SITES.format(shoal=over_wan.parent / "shoal", folder=wire.folder, run=run, turns=JOIN_TURNS, steps=JOIN_STEPS,
                               beside=JOIN_STEPS_BESIDE, most=JOIN_MOST_STEPS, cores=[cores[0], cores[1 % len(cores)]])
    counts = wire.folder / "joining.counts"
    with Steps(wire.folder / "joining-0" / "metrics.jsonl") as steps:
        # The link itself is emulated on the joiner's core.
        words = ["taskset", "-c", str(cores[1 % len(cores)]), over_wan, "--megabits", "100", "--round-trip", str(ROUND_TRIP_MS), "--counts", counts]
        done = subprocess.run([*words, "--", "bash", "-c", script], capture_output=True, text=True, cwd=wire.folder)
    if not (wire.folder / f"joining-{JOIN_TURNS}" / "address").exists():
        raise comparison.Failed(f"nobody has joined:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    moments = [tuple(map(int, line.split())) for line in counts.read_text().splitlines()]
    found = JoiningSteps(run, steps, [(at * 1e-9, there, back) for at, there, back in moments])
    # Each turn against the steps alone right before it.
    ratios = sorted(statistics.median(alone) / statistics.median(beside) for alone, beside in zip(found.alone, found.beside))
    ours, peer = (statistics.median(step for turn in turns for step in turn) for turns in (found.beside, found.alone))
    comparison.emit(case, "s a step", ours, peer, statistics.median(ratios), (ratios[-1] - ratios[0]) / 2, 1 / 1.1, ratios=ratios,
                    steps=[sum(map(len, found.alone)), sum(map(len, found.beside))], longest=max(map(max, found.beside)),
                    seconds=sum(found.beside[-1]), bytes=moments[-1][1])


class Losses:
    """Runs on the header corpus, on two ranks of this host: links change no loss."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="shoal-losses-"))

    @functools.cached_property
    def data(self):
        shoal("data", "prepare", "--corpus", "headers", "--tokenizer", "byte", "--out", self.folder / "headers", cwd=self.folder)
        return self.folder / "headers"

    @functools.cache
    def of(self, method):
        """The held-out loss of each seed."""
        assert self.data
        job, found = self.folder / f"{method}.toml", []
        steps = LOSS_STEPS + (LOSS_OVERLAP if method == "streaming" else 0)
        members = members_of(method, LOSS_EVERY, LOSS_OVERLAP, LOSS_CODEC) + LOSS_MEMBERS[method]
        job.write_text(LOSS_JOB.format(folder=self.folder, steps=steps, members=members) + STEPS_ALONE.format(batches=200))
        for seed in SEEDS:
            run = self.folder / f"{method}-{seed}"
            shoal("train", job, "--run-dir", run, "--set", f"debug.seed={seed}", cwd=self.folder)
            found.append(json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["eval_loss"])
        return found


losses = Losses()


def loss(case, method):
    ours, peer = losses.of(method), losses.of("synchronous")
    us, them = statistics.mean(ours), statistics.mean(peer)
    noise = (max(peer) - min(peer)) / them
    # Streaming with its default `mix` is known to be worse here (docs/concepts/low_communication.md).
    limit = 1 - noise if method == "diloco" else None
    comparison.emit(case, "nats a token", us, them, them / us, noise, limit, seeds=[ours, peer])


CASES = {"low_communication/computing/diloco/100mbit": (computing, "diloco", 100),
         "low_communication/computing/streaming/100mbit": (computing, "streaming", 100),
         "low_communication/computing/streaming/10mbit": (computing, "streaming", 10),
         "low_communication/bytes/diloco": (bytes_sent, "diloco"),
         "low_communication/bytes/streaming": (bytes_sent, "streaming"),
         "low_communication/peak/streaming": (peak,),
         "low_communication/planned/diloco": (planned,),
         "low_communication/joining": (joining,),
         "low_communication/loss/diloco": (loss, "diloco"),
         "low_communication/loss/streaming": (loss, "streaming")}


def measure(case):
    function, *what = CASES[case]
    function(case, *what)


if __name__ == "__main__":
    try:
        comparison.main(CASES, measure)
    finally:
        for folder in (wire.folder, losses.folder):
            shutil.rmtree(folder, ignore_errors=True)
