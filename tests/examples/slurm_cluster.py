"""A cluster of two nodes on one machine: Slurm's own daemons (Debian's packages slurmctld, slurmd, slurm-client and munge), each node in a network
namespace with a name of its own, joined by a virtual cable. It takes root. Nothing outside its folder and its namespaces is touched."""
import os
import pathlib
import shutil
import signal
import subprocess
import time

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "ip", "nsenter")
NODES, ADDRESSES, CORES = ("node1", "node2"), ("10.78.0.1", "10.78.0.2"), 8
CONFIGURATION = """
ClusterName=shoal
SlurmctldHost=node1({address})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmUser=root
SlurmdParameters=config_overrides
NodeName=node[1-2] NodeAddr=10.78.0.[1-2] CPUs={cores} RealMemory=1000
PartitionName=all Nodes=node[1-2] Default=YES MaxTime=INFINITE State=UP
"""
START_S = 60


def obstacle():
    """Why no cluster can be started here; None where it can be tried."""
    if os.geteuid() != 0:
        return "it takes root"
    # Debian has the daemons where root finds them.
    missing = [name for name in DAEMONS if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")]
    return f"{', '.join(missing)} missing: tools/setup_peers.sh slurm installs them" if missing else None


class Cluster:
    """Running from `start()` to `stop()`. Both nodes see the same files."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.spaces = [f"shoal-slurm-{os.getpid()}-{node}" for node in NODES]
        self.daemons = []

    def start(self):
        """Why it did not start; None where both nodes execute commands."""
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{address} {node}\n" for address, node in zip(ADDRESSES, NODES)))
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(folder=self.folder, address=ADDRESSES[0], cores=CORES))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
        (self.folder / "munge.key").write_bytes(os.urandom(128))
        (self.folder / "munge.key").chmod(0o600)
        try:
            self.join_nodes()
        except (OSError, subprocess.CalledProcessError) as error:
            return f"no network namespaces can be made: {error}"
        files = [f"--{kind}={self.folder}/munge.{kind.removesuffix('-file')}" for kind in ("key-file", "pid-file", "log-file", "seed-file", "socket")]
        self.daemon(0, "munged", "--foreground", "--force", *files)
        self.daemon(0, "slurmctld", "-D")
        for node, name in enumerate(NODES):
            self.daemon(node, "slurmd", "-D", "-N", name)
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            said = self.run("srun", "--immediate=5", "--nodes=2", "--ntasks=2", "hostname", timeout=30)
            if said.returncode == 0 and sorted(said.stdout.split()) == list(NODES):
                return None
            time.sleep(0.5)
        return f"srun did not reach both nodes within {START_S} s: {said.stderr.strip()}\n{self.words_of_daemons()}"

    def join_nodes(self):
        def ip(*words):
            subprocess.run(["ip", *words], check=True, capture_output=True)

        for space in self.spaces:
            ip("netns", "add", space)
        ip("link", "add", "shoal0", "netns", self.spaces[0], "type", "veth", "peer", "name", "shoal0", "netns", self.spaces[1])
        for space, address in zip(self.spaces, ADDRESSES):
            ip("-n", space, "address", "add", f"{address}/24", "dev", "shoal0")
            for device in ("lo", "shoal0"):
                ip("-n", space, "link", "set", device, "up")

    def on(self, node):
        """The words before a command that runs on a node, with the node's name and addresses."""
        # Not `ip netns exec`, which hides the control groups that slurmd wants.
        setup = f"hostname {NODES[node]} && mount --bind {self.folder}/hosts /etc/hosts && exec \"$@\""
        return ["nsenter", f"--net=/run/netns/{self.spaces[node]}", "unshare", "--uts", "--mount", "sh", "-c", setup, "sh"]

    def environment(self):
        own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MASTER_"))}
        return {**own, "SLURM_CONF": f"{self.folder}/slurm.conf", "PATH": f"{own['PATH']}:/usr/sbin:/sbin"}

    def daemon(self, node, *words):
        with open(self.folder / f"{words[0]}-{NODES[node]}.log", "w") as log:
            self.daemons.append(subprocess.Popen([*self.on(node), *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment(),
                                                 start_new_session=True))

    def run(self, *words, timeout=120, cwd=None, **environment):
        """Runs a command on the first node, as a user who is logged in there."""
        return subprocess.run([*self.on(0), *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, cwd=cwd,
                              env={**self.environment(), **environment})

    def words_of_daemons(self):
        return "\n".join(f"== {log.name}\n{log.read_text()[-1000:]}" for log in sorted(self.folder.glob("*.log")))

    def stop(self):
        if self.daemons:
            self.run("scancel", "--user=root")
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()
        for space in self.spaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)
