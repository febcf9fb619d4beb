"""Where srun has put this process, from the variables that Slurm sets for every task; scontrol is not needed."""
import itertools
import re
import zlib

LARGEST = 100_000  # nodes; a list that names more is a mistake
FIRST_PORT, PORTS = 20_000, 10_000  # below those that Linux gives to connections


def _parts(text):
    """The node list without its brackets: [["n"], ["01", "02"], ["-ib"]] of "n[01-02]-ib"."""
    parts = []
    for literal, ranges in re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", text):
        if literal:
            parts.append([literal])
            continue
        numbers = []
        for each in ranges.split(","):
            found = re.fullmatch(r"(\d+)(?:-(\d+))?", each)
            if not found:
                raise ValueError(f"'{each}' is no number and no range")
            low, high = found[1], found[2] or found[1]
            if not 0 <= int(high) - int(low) < LARGEST:
                raise ValueError(f"{each} is no range of at most {LARGEST} nodes")
            numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
        parts.append(numbers)
    return parts


def expand(text):
    """The names of a node list as Slurm writes it: "n[1-3,07],m" is n1, n2, n3, n07, m. Raises ValueError."""
    if not re.fullmatch(r"(?:[^\[\],\s]|\[[^\[\]\s]*\])+(?:,(?:[^\[\],\s]|\[[^\[\]\s]*\])+)*", text):
        raise ValueError(f"'{text}' is no list of nodes")
    names = []
    for item in re.split(r",(?![^\[]*\])", text):
        parts = _parts(item)
        count = 1
        for part in parts:
            count *= len(part)
        if len(names) + count > LARGEST:
            raise ValueError(f"'{text}' names more than {LARGEST} nodes")
        names += ["".join(pieces) for pieces in itertools.product(*parts)]
    return names


def tasks_of_nodes(text):
    """Tasks on each node: "2(x3),1" is [2, 2, 2, 1]. Raises ValueError."""
    tasks = []
    for each in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", each)
        if not found:
            raise ValueError(f"'{text}' does not say how many tasks each node has")
        tasks += [int(found[1])] * int(found[2] or 1)
    return tasks


def port_of(job, step):
    """A port that all ranks of one job step compute alike; other steps on the same nodes mostly get another."""
    return FIRST_PORT + zlib.crc32(f"{job}.{step}".encode()) % PORTS


def is_task(environment):
    """Has srun started this process? A batch script has SLURM_PROCID too, but is no task of a step."""
    return "SLURM_STEP_NUM_TASKS" in environment and "SLURM_PROCID" in environment
