"""Traces of real steps, as a reader sees them that knows the Trace Event format and nothing of Shoal's code: slices nest, arrows lie in slices and
go forward, what matches is on all ranks of a group, nothing completes before all ranks have begun, matmuls have the FLOPs of the model's formula,
and times add up to the step. Argument: the program."""
import collections
import json
import pathlib
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile

PROGRAM, SOURCE = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(__file__).resolve().parents[2]
LAYERS, HIDDEN, HEADS, FFN, T, BATCH, STEPS = 2, 64, 2, 256, 64, 12, 5
FIRST, LAST = 2, 4
JOB = f"""
[model]
family = "transformer"
layers = {LAYERS}
hidden = {HIDDEN}
heads = {HEADS}
kv_heads = {HEADS}
ffn = {FFN}
vocab = 0
positions = "learned"
norm = "layer"
activation = "gelu"
[data]
source = "tokens"
folders = ["data"]
prepare = "files"
prepare_from = ["{SOURCE}/src/shoal/base"]
tokenizer = "byte"
[training]
global_batch_sequences = {BATCH}
micro_batch = 2
sequence_length = {T}
steps = {STEPS}
[parallelism]
threads_per_rank = 1
timeout_s = 60
[validation]
interval = 3
batches = 1
[checkpoint]
interval = 2
at_end = false
[metrics]
tensorboard = false
trace_steps = [{FIRST}, {LAST}]
"""
failures = []


def check(right, what):
    if not right:
        failures.append(what)


def train(folder, name, ranks, *sets):
    words = [PROGRAM, "train", "job.toml", "--nproc", str(ranks), "--run-dir", name]
    for one in sets:
        words += ["--set", one]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{name}: {done.stdout}\n{done.stderr}")
    return folder / name


class Trace:
    def __init__(self, run, ranks):
        self.name, self.ranks = run.name, ranks
        document = json.loads((run / "trace.json").read_text())
        self.head, self.events = document["otherData"], document["traceEvents"]
        self.slices = [event for event in self.events if event["ph"] == "X"]
        self.by_thread = collections.defaultdict(list)
        for event in self.slices:
            event["end"] = event["ts"] + event["dur"]
            self.by_thread[event["pid"], event["tid"]].append(event)
        threads = {(event["pid"], event["tid"]): event["args"]["name"] for event in self.events if event["ph"] == "M" and event["name"] == "thread_name"}
        # Perfetto knows a thread by its number alone, and takes one with the number of a process for its first.
        numbers = [tid for _, tid in threads]
        check(len(set(numbers)) == len(numbers) and not set(numbers) & set(range(ranks)), f"{run.name}: threads have the numbers {numbers}")
        self.training = {pid: tid for (pid, tid), name in threads.items() if name == "training"}
        self.spans = {rank: sorted(self.by_thread[rank, self.training[rank]], key=lambda event: (event["ts"], -event["end"])) for rank in range(ranks)}
        self.transfers = [event for event in self.slices if event["cat"] == "transfer"]
        self.steps = {rank: [event for event in self.spans[rank] if event["cat"] == "step"] for rank in range(ranks)}
        self.error = self.head["clock_error_us"] + 0.01

    def check(self, right, what):
        check(right, f"{self.name}: {what}")

    def check_form(self):
        self.check({event["pid"] for event in self.events} == set(range(self.ranks)), "a process for each rank")
        named = {event["pid"]: event["args"]["name"] for event in self.events if event["ph"] == "M" and event["name"] == "process_name"}
        self.check(named == {rank: f"rank {rank}" for rank in range(self.ranks)}, f"processes are called {named}")
        self.check(self.head["dropped"] == 0, "spans were dropped")
        self.check(self.head["clock_error_us"] == 0, f"ranks of one host have one clock, and it is wrong by {self.head['clock_error_us']} us")
        for place, events in self.by_thread.items():
            open_slices = []
            for event in sorted(events, key=lambda event: (event["ts"], -event["end"])):
                self.check(event["dur"] >= 0 and event["ts"] >= -self.error, f"{event['name']} at {event['ts']} takes {event['dur']}")
                while open_slices and open_slices[-1]["end"] <= event["ts"] + 1e-4:
                    open_slices.pop()
                self.check(not open_slices or event["end"] <= open_slices[-1]["end"] + 1e-4, f"{event['name']} on {place} outlasts the slice around it")
                self.check(place[1] == self.training[place[0]] or not open_slices, f"operations overlap on {place}")
                open_slices.append(event)
        for rank in range(self.ranks):
            steps = self.steps[rank]
            self.check([step["args"]["step"] for step in steps] == list(range(FIRST, LAST + 1)), f"rank {rank} has other steps")
            self.check(all(a["end"] <= b["ts"] for a, b in zip(steps, steps[1:])), "steps overlap")

    def check_matches(self):
        groups = collections.defaultdict(list)
        messages = collections.defaultdict(list)
        for event in self.transfers:
            arguments = event["args"]
            self.check("unfinished" not in arguments, f"{event['name']} is not finished")
            self.check(0 <= arguments["blocked_us"] <= event["dur"] + 0.01, f"{event['name']} took {event['dur']}, blocked {arguments['blocked_us']}")
            if "tag" in arguments:
                messages[tuple(arguments[key] for key in ("group_id", "source", "destination", "tag", "number"))].append(event)
            else:
                groups[arguments["group_id"], event["name"], arguments["number"]].append(event)
        for key, events in groups.items():
            self.check(len(events) == events[0]["args"]["ranks"] == len({event["pid"] for event in events}), f"{key} is on {len(events)} ranks")
            # All ranks give and take in these: none is complete before all have begun.
            if key[1] in ("all_reduce", "all_gather", "reduce_scatter", "barrier"):
                begun = max(event["ts"] for event in events)
                self.check(all(event["end"] >= begun - self.error for event in events), f"{key} ends before it begins elsewhere")
        for key, events in messages.items():
            self.check(sorted(event["name"] for event in events) == ["recv", "send"], f"{key}: {[event['name'] for event in events]}")
            if len(events) == 2:
                send, receive = sorted(events, key=lambda event: event["name"], reverse=True)
                self.check(receive["end"] >= send["ts"] - self.error, f"{key} arrives before it is sent")
                self.check(send["args"]["bytes"] == receive["args"]["bytes"] > 0, f"{key} changes its size")
        flows = collections.defaultdict(list)
        for event in self.events:
            if event["ph"] in "stf":
                flows[event["id"]].append(event)
                inside = [one for one in self.by_thread[event["pid"], event["tid"]] if one["ts"] <= event["ts"] + 1e-4 and event["ts"] <= one["end"] + 1e-4]
                self.check(inside, f"an arrow of {event['name']} lies in no slice")
        for events in flows.values():
            kinds = "".join(event["ph"] for event in events)
            self.check(re.fullmatch("st*f", kinds), f"an arrow goes {kinds}")
            self.check(all(a["ts"] <= b["ts"] for a, b in zip(events, events[1:])), "an arrow goes back in time")
            self.check(len({event["pid"] for event in events}) == len(events), "an arrow leads to its own rank")
        self.check(len(flows) == len(groups) + len(messages), f"{len(flows)} arrows for {len(groups)} collectives and {len(messages)} messages")
        return groups, messages

    def flops(self, kind):
        """FLOPs of a step, over all ranks and the traced steps."""
        sums = {step["args"]["step"]: 0 for step in self.steps[0]}
        for rank in range(self.ranks):
            for step in self.steps[rank]:
                sums[step["args"]["step"]] += sum(event["args"]["flops"] for event in self.spans[rank]
                                                  if event["cat"] == kind and step["ts"] <= event["ts"] < step["end"])
        return list(sums.values())

    def check_work(self, run):
        vocab = int(re.search(r"^vocab = (\d+)", (run / "config.toml").read_text(), re.M)[1])
        # 2 FLOPs a weight and token in forward, 4 in backward.
        weights = LAYERS * (4 * HIDDEN * HIDDEN + 2 * HIDDEN * FFN) + vocab * HIDDEN
        expected = 6 * weights * BATCH * T
        self.check(all(found == expected for found in self.flops("matmul")), f"matmuls have {self.flops('matmul')} FLOPs, not {expected}")
        # Pairs of causal attention: two matmuls forward, five backward.
        expected = 2 * 7 * LAYERS * BATCH * (T * (T + 1) // 2) * HIDDEN
        self.check(all(found == expected for found in self.flops("attention")), f"attention has {self.flops('attention')} FLOPs, not {expected}")

    def uncovered(self):
        """The part of each step that lies in no span but its own."""
        parts = []
        for rank in range(self.ranks):
            for step in self.steps[rank]:
                covered, until = 0, step["ts"]
                for event in self.spans[rank]:
                    if event is not step and step["ts"] <= event["ts"] and event["end"] <= step["end"]:
                        covered += max(0, event["end"] - max(until, event["ts"]))
                        until = max(until, event["end"])
                parts.append(1 - covered / step["dur"])
        return parts

    def check_times(self, run):
        # The middle one: on a busy machine a step may be held up anywhere.
        uncovered = statistics.median(self.uncovered())
        self.check(uncovered <= 0.02, f"{100 * uncovered:.1f} % of a step lie in no span")
        lines = {line["step"]: line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())}
        ratios = [step["dur"] / (1e6 * lines[step["args"]["step"]]["step_s"]) for step in self.steps[0]]
        self.check(abs(statistics.median(ratios) - 1) <= 0.02, f"steps take {ratios} of what metrics.jsonl says")
        for step, line in lines.items():
            self.check(0 < line["mfu"] < 1.5, f"step {step}: mfu {line['mfu']}")
            self.check(("data_wait_s" in line) == (step > 1), f"step {step}: data_wait_s")
        # Means over the ranks, a step later: data spans, and the outermost communication spans.
        for key, kind in (("data_wait_s", "data"), ("comm_exposed_s", "communication")):
            for index, step in enumerate(range(FIRST, LAST)):
                total = sum(event["dur"] for rank in range(self.ranks) for event in self.spans[rank]
                            if event["cat"] == kind and event["name"] != "count labels" and self.steps[rank][index]["ts"] <= event["ts"] < self.steps[rank][index]["end"])
                told = lines[step + 1][key] * 1e6 * self.ranks
                # Calls of less than a microsecond have no span.
                self.check(-0.02 * told - 50 <= told - total <= 0.05 * told + 1000, f"step {step}: {key} is {told} us, and the spans have {total}")

    def check_query(self):
        """The query of the page, on tables as Perfetto makes them, finds for every operation how long its rank computed beside it."""
        tables = sqlite3.connect(":memory:")
        tables.executescript("create table slice (id, ts, dur, track_id, category, name); create table thread_track (id, utid);"
                             "create table thread (utid, upid); create table process (upid, name)")
        # Keys of one table mean nothing in another.
        tables.executemany("insert into process values (?, ?)", [(50 + rank, f"rank {rank}") for rank in range(self.ranks)])
        for number, (rank, _) in enumerate(self.by_thread):
            tables.execute("insert into thread values (?, ?)", (200 + number, 50 + rank))
            tables.execute("insert into thread_track values (?, ?)", (900 + number, 200 + number))
        tracks = {place: 900 + number for number, place in enumerate(self.by_thread)}
        tables.executemany("insert into slice values (?, ?, ?, ?, ?, ?)",
                           [(number, 1e3 * one["ts"], 1e3 * one["dur"], tracks[one["pid"], one["tid"]], one["cat"], one["name"])
                            for number, one in enumerate(self.slices)])
        (sql,) = re.findall(r"^```sql\n(.*?)^```", (SOURCE / "docs/how_to/see_a_run.md").read_text(), re.M | re.S)
        found = sorted(tables.execute(sql).fetchall())
        expected = sorted((one["name"], f"rank {one['pid']}", one["dur"],
                           sum(max(0, min(one["end"], span["end"]) - max(one["ts"], span["ts"])) for span in self.spans[one["pid"]]
                               if span["cat"] in ("matmul", "attention"))) for one in self.transfers)
        self.check(len(found) == len(expected), f"the query finds {len(found)} operations of {len(expected)}")
        for row, right in zip(found, expected):
            self.check(row[:2] == right[:2] and abs(row[2] - right[2]) < 0.01 and abs(row[3] - right[3]) < 0.01, f"the query says {row}, and it is {right}")

    def check_profile(self, run):
        profile = json.loads(subprocess.run([PROGRAM, "profile", run, "--json"], capture_output=True, text=True, check=True).stdout)
        durations = [step["dur"] for rank in range(self.ranks) for step in self.steps[rank]]
        mean = statistics.mean(durations) / 1e6
        self.check(abs(profile["step_s"] - mean) < 1e-8, f"the profile's step takes {profile['step_s']}, not {mean}")
        rows = {row["name"]: row for row in profile["rows"]}
        total = sum(row["seconds"] for row in rows.values()) + profile["uncovered_s"]
        self.check(abs(total - mean) < 1e-8, f"the profile adds up to {total}, not {mean}")
        uncovered = statistics.mean(part * duration for part, duration in zip(self.uncovered(), durations)) / 1e6
        self.check(abs(profile["uncovered_s"] - uncovered) < 1e-8, f"uncovered are {profile['uncovered_s']}, not {uncovered}")
        matmuls = statistics.mean(self.flops("matmul")) / self.ranks
        self.check(abs(rows["matmul"]["flops"] / matmuls - 1) < 1e-9, f"matmuls have {rows['matmul']['flops']} FLOPs, not {matmuls}")
        self.check(0 < profile["hidden_s"] <= profile["in_flight_s"] < 1.01 * mean or self.ranks == 1, f"in flight {profile['in_flight_s']}, hidden {profile['hidden_s']}")
        text = subprocess.run([PROGRAM, "profile", run / "trace.json", "--units"], capture_output=True, text=True, check=True).stdout
        for words in ("matmul", "GFLOP/s", "GB/s", "communication, exposed", "data wait", "optimizer", "forward blocks.0", "backward blocks.1"):
            self.check(words in text, f"the profile says nothing of {words}:\n{text}")
        return text


def losses(run):
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    (folder / "job.toml").write_text(JOB)
    # Data parallelism with overlap.
    run = train(folder, "two", 2)
    two = Trace(run, 2)
    two.check_form()
    groups, messages = two.check_matches()
    check(not messages and any(key[1] == "all_reduce" for key in groups), f"two: {sorted(key[1] for key in groups)}")
    two.check_work(run)
    two.check_times(run)
    text = two.check_profile(run)
    two.check_query()
    kinds = {event["cat"] for event in two.slices}
    check({"evaluation", "checkpoint", "report", "forward", "backward", "unit", "operator"} <= kinds, f"two: kinds are {kinds}")
    # A trace changes no bits.
    check(losses(run) == losses(train(folder, "plain", 2, "metrics.trace_steps=[]")), "the trace changes losses")
    check(not (folder / "plain" / "trace.json").exists(), "a trace that nobody wanted")
    # Parameters that travel, on three ranks over TCP.
    run = train(folder, "three", 3, "parallelism.zero_stage=3", 'parallelism.transport="tcp"')
    three = Trace(run, 3)
    three.check_form()
    groups, messages = three.check_matches()
    check({"all_gather", "reduce_scatter"} <= {key[1] for key in groups}, f"three: {sorted({key[1] for key in groups})}")
    three.check_work(run)
    # Messages between stages; ranks are threads of one process.
    run = train(folder, "pipeline", 2, "parallelism.pipeline_parallel_degree=2", "parallelism.in_process=true")
    pipeline = Trace(run, 2)
    pipeline.check_form()
    groups, messages = pipeline.check_matches()
    # Each micro-batch goes forward and comes back in each step, and goes forward in the evaluation.
    check(len(messages) == (BATCH // 2) * (2 * (LAST - FIRST + 1) + 1), f"pipeline: {len(messages)} messages")
    pipeline.check_work(run)
    # Loans and messages of ring attention, and blocks that backward computes anew.
    run = train(folder, "four", 4, "parallelism.tensor_parallel_degree=2", "parallelism.context_parallel_degree=2", "activation_checkpoint.mode=full")
    four = Trace(run, 4)
    four.check_form()
    groups, messages = four.check_matches()
    check(messages and {"lend", "all_gather", "reduce_scatter"} <= {key[1] for key in groups}, f"four: {sorted({key[1] for key in groups})}")
    check({event["args"]["group"] for event in four.transfers} == {"world", "tp", "cp"}, "four: groups have other names")
    # A run that ends before the last step still leaves what it has.
    run = train(folder, "short", 1, "metrics.trace_steps=[5,100]")
    document = json.loads((run / "trace.json").read_text())["otherData"]
    check((document["first_step"], document["last_step"]) == (5, 5), f"short: {document}")
    plotted = subprocess.run([PROGRAM, "plot", "two", "three", "-o", "losses.svg"], cwd=folder, capture_output=True, text=True)
    check(plotted.returncode == 0 and "three, last" in (folder / "losses.svg").read_text(), f"plot: {plotted.stderr}")
    for wrong, code in ((["profile", "nowhere"], 66), (["profile", "losses.svg"], 65), (["plot", "nowhere"], 66)):
        done = subprocess.run([PROGRAM, *wrong], cwd=folder, capture_output=True, text=True)
        check(done.returncode == code, f"{wrong}: {done.returncode}, {done.stderr}")

for failure in failures[:40]:
    print(failure)
if failures:
    print(f"{len(failures)} failures; the profile of two ranks:\n{text}")
    sys.exit(1)
print(text)
