"""Starts a PyTorch program on several ranks, with Shoal in the place of Gloo.

    python -m shoal.run [--nproc N] script.py arguments...
    python -m shoal.run --nproc N --nnodes 2 --node-rank R --rendezvous HOST:PORT -m module arguments...
    srun -N 2 --ntasks-per-node 1 python -m shoal.run --nproc N script.py arguments...

The program is not changed: it gets the variables that torchrun sets, and wherever it asks for Gloo (init_process_group, new_group, DeviceMesh)
its CPU collectives run on Shoal. When a rank fails, the first cause is named, the others are ended, and its exit code is that of the launcher.
"""
import argparse
import importlib.metadata
import os
import signal
import sys

from shoal import _slurm
from shoal._output import to_descriptor
from shoal._ranks import Place, Ranks, counted, default_threads, environment, reserve_port, usable_cores


def parser():
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m shoal.run", usage="%(prog)s [options] [-m] script.py [arguments ...]",
                                     description="Starts a PyTorch program on several ranks, with Shoal in the place of Gloo.")
    parser.add_argument("--nproc", "--nproc-per-node", type=int, metavar="N",
                        help="ranks on this node; without it one a core, and one a task under srun")
    parser.add_argument("--nnodes", type=int, default=1, metavar="N", help="nodes, each of which starts this command with as many ranks")
    parser.add_argument("--node-rank", type=int, metavar="R", help="which of them this is, from 0")
    parser.add_argument("--rendezvous", metavar="HOST:PORT", help="an address of node 0 and a port that is free there")
    parser.add_argument("--grace", type=float, default=10.0, metavar="SECONDS",
                        help="how long a rank that was asked to end may take before it is killed (default: 10)")
    parser.add_argument("--keep-gloo", action="store_true", help="leave Gloo in its place, to compare")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, as in python -m")
    parser.add_argument("program", metavar="script.py", help="the program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what it is given")
    return parser


def parse(arguments):
    """The arguments, checked, with the place of this node's ranks; ends the program where they make no sense."""
    command_line = parser()
    given = command_line.parse_args(arguments)
    if given.nproc is not None and given.nproc < 1:
        command_line.error("--nproc must be at least 1")
    if given.nnodes < 1:
        command_line.error("--nnodes must be at least 1")
    if not given.module and not os.path.isfile(given.program):
        command_line.error(f"there is no file {given.program}")
    try:
        given.place = place_of(given, os.environ)
    except ValueError as error:
        command_line.error(str(error))
    return given


def split_address(text):
    """("::1", 7000) of "[::1]:7000"."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"--rendezvous {text}: expected HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def place_of(given, variables):
    """Which ranks this launcher starts, and where all meet. Raises ValueError."""
    if given.nnodes > 1:
        if given.node_rank is None or given.rendezvous is None:
            raise ValueError("--nnodes needs --node-rank and --rendezvous")
        if not 0 <= given.node_rank < given.nnodes:
            raise ValueError(f"--node-rank {given.node_rank} is none of {given.nnodes} nodes")
        address, port = split_address(given.rendezvous)
        count = given.nproc or usable_cores()
        return Place(count, first=given.node_rank * count, world=given.nnodes * count, node=given.node_rank, nodes=given.nnodes,
                     address=address, port=port)
    if given.node_rank is not None:
        raise ValueError("--node-rank needs --nnodes")
    if _slurm.is_task(variables):
        return place_in_slurm(given, variables)
    if given.rendezvous is not None:
        address, port = split_address(given.rendezvous)
        return Place(given.nproc or usable_cores(), address=address, port=port)
    return Place(given.nproc or usable_cores())


def place_in_slurm(given, variables):
    """Each task of a job step starts `--nproc` ranks, or is one."""
    count = given.nproc or 1
    try:
        task, tasks, local, node = (int(variables[name]) for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID"))
        here = _slurm.tasks_of_nodes(variables["SLURM_STEP_TASKS_PER_NODE"])
        nodes = _slurm.expand(variables.get("SLURM_STEP_NODELIST") or variables["SLURM_JOB_NODELIST"])
        local_tasks = here[node]
    except KeyError as missing:
        raise ValueError(f"Slurm's environment is incomplete: {missing.args[0]} is not set") from None
    except IndexError:
        raise ValueError(f"Slurm's environment is broken: SLURM_STEP_TASKS_PER_NODE={variables['SLURM_STEP_TASKS_PER_NODE']} has no node "
                         f"{variables['SLURM_NODEID']}") from None
    except ValueError as error:
        raise ValueError(f"Slurm's environment is broken: {error}") from None
    address = variables.get("MASTER_ADDR") or (nodes[0] if len(here) > 1 else "127.0.0.1")
    port = int(variables.get("MASTER_PORT") or _slurm.port_of(variables.get("SLURM_JOB_ID", ""), variables.get("SLURM_STEP_ID", "")))
    if given.rendezvous is not None:
        address, port = split_address(given.rendezvous)
    return Place(count, first=task * count, world=tasks * count, local_first=local * count, local_world=local_tasks * count, node=node,
                 nodes=len(here), address=address, port=port)


def obstacle():
    """Why PyTorch in the ranks would not call Shoal; None where it does."""
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        return "TORCH_DEVICE_BACKEND_AUTOLOAD forbids PyTorch to load Shoal: unset it"
    if not any(point.name == "shoal" for point in importlib.metadata.entry_points(group="torch.backends")):
        return "PyTorch finds Shoal by the metadata of its wheel, which is not here: pip install --no-build-isolation ./python"
    return None


def main(arguments=None):
    given = parse(arguments)
    write_out, write_err = to_descriptor(1), to_descriptor(2)

    def say(text):
        write_err(f"shoal.run: {text}\n".encode())

    if not given.keep_gloo and obstacle():
        say(obstacle())
        return 2
    place, reservation = given.place, None
    if place.port == 0:
        place.port, reservation = reserve_port()
    words = [sys.executable, "-u", *(["-m"] if given.module else []), given.program, *given.arguments]
    part = f" of {place.world}" if place.world != place.count else ""
    say(f"starts {counted(place.count, 'rank')}{part} with {counted(os.environ.get('OMP_NUM_THREADS', default_threads(place)), 'thread')} each "
        f"on {counted(usable_cores(), 'core')}")
    waiting = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: waiting.append(number))
    try:
        ranks = Ranks(place, lambda _: words, lambda index, error_file: environment(place, index, error_file, not given.keep_gloo), write_out, write_err,
                      say, given.grace)
    except OSError as error:
        say(f"the ranks cannot be started: {error}")
        return 1
    with ranks:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: ranks.stop(number))
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda number, _: ranks.pass_on(number))
        for number in waiting:  # while the ranks were being started
            (ranks.pass_on if number in (signal.SIGUSR1, signal.SIGUSR2) else ranks.stop)(number)
        code = ranks.run()
    if reservation:
        reservation.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
