"""A real Slurm cluster of our own on this machine: daemons on free loopback ports, each node like a host of its own.

A node lives in its own PID, mount, UTS and IPC namespaces, with its own host name, boot id and /run; ending the
namespace's first process ends all that is on the node in one instant, as a power cut does. Nothing of the machine's
own Slurm, if it has one, is read or touched.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.waiting import wait_until

PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin:/usr/local/sbin"
READY = 60.0  # seconds
_FRESH = 0.2  # seconds
_CGROUPS = Path("/sys/fs/cgroup")

_CONF = """
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock,cred_expire=5
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={port}
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmdParameters=config_overrides
DebugFlags=NO_CONF_HASH
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=400
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
{parameters}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
JobRequeue=1
KillWait={kill_wait}
MinJobAge=600
BatchStartTimeout=1
SlurmdTimeout=300
SlurmctldTimeout=10
MessageTimeout=5
TCPTimeout=2
"""
_CGROUP_CONF = """
CgroupPlugin=cgroup/v1
CgroupAutomount=no
CgroupMountpoint=/sys/fs/cgroup
ConstrainRAMSpace=yes
ConstrainSwapSpace=no
"""

_NODE = r"""
set -e
mount --make-rprivate /
hostname "$1"
made=$(mktemp -d)
mount -t tmpfs boot "$made"
cat /proc/sys/kernel/random/uuid >"$made/boot_id"
mount --bind "$made/boot_id" /proc/sys/kernel/random/boot_id
umount -l "$made"
rmdir "$made"
mount --bind "$2" /etc/hosts
mount -t tmpfs run /run
shift 2
"$@"
echo up
trap '' TERM
while :; do sleep 1000 & wait $!; done
"""


class Cluster:
    """munged, slurmctld and nodes; `partitions` are lines of slurm.conf whose node names are ours.

    Names are short (`a1`), and made unique with the cluster's own name, since cgroups are named after nodes.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[str],
        partitions: str,
        *,
        parameters: str = "SlurmctldParameters=preempt_send_user_signal",
        kill_wait: int = 3,
        cpus: int = 8,
    ) -> None:
        self.folder = folder
        self.name = f"ol{secrets.token_hex(3)}"
        self.nodes = {node: f"{self.name}{node}" for node in nodes}
        self._asking = threading.Lock()
        self._asked_at = float("-inf")
        self._jobs: dict[str, dict[str, str]] = {}
        self._inits: dict[str, subprocess.Popen[bytes]] = {}
        for part in ("etc", "log", "run", "state", *(f"spool/{name}" for name in self.nodes.values())):
            (folder / part).mkdir(parents=True)
        self.conf = folder / "etc" / "slurm.conf"
        self.env = {**os.environ, "SLURM_CONF": str(self.conf), "PATH": PATH}
        self._partitions, self._cpus, self._kill_wait = partitions, cpus, kill_wait
        self._ports = _free_ports(1 + len(nodes))
        self._configure(parameters)
        key = folder / "etc" / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        (folder / "etc" / "cgroup.conf").write_text(_CGROUP_CONF)
        (folder / "etc" / "hosts").write_text(f"127.0.0.1 localhost {' '.join(self.nodes.values())}\n")

    def _configure(self, parameters: str) -> None:
        """Write slurm.conf, with these further lines."""
        text = _CONF.format(
            name=self.name,
            host=socket.gethostname(),
            folder=self.folder,
            port=self._ports[0],
            parameters=parameters,
            kill_wait=self._kill_wait,
        )
        for port, node in zip(self._ports[1:], self.nodes.values(), strict=True):
            text += f"NodeName={node} NodeAddr=127.0.0.1 Port={port} CPUs={self._cpus} RealMemory=8000\n"
        partitions = self._partitions
        for short, name in self.nodes.items():
            partitions = partitions.replace(f"<{short}>", name)
        self.conf.write_text(text + partitions)

    # --- starting and stopping ---

    def start(self) -> None:
        """Start everything, and wait until all nodes are idle."""
        run, log, etc = (self.folder / part for part in ("run", "log", "etc"))
        options = {
            "key-file": etc / "munge.key",
            "socket": run / "munge.sock",
            "pid-file": run / "munged.pid",
        }
        options |= {"log-file": log / "munged.log", "seed-file": run / "munged.seed"}
        self._daemon("munged", "--force", *(f"--{name}={value}" for name, value in options.items()))
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self.until_idle()

    def start_controller(self) -> None:
        self._daemon("slurmctld", "-f", str(self.conf))

    def stop_controller(self) -> None:
        """Stop it: nothing answers at its port any more. It writes down what it knows, as at a maintenance."""
        self._end("slurmctld", signal.SIGTERM)

    def start_node(self, node: str) -> None:
        """Boot a node: fresh namespaces, a fresh boot id, and slurmd saying that the node was rebooted."""
        name = self.nodes[node]
        command = [
            "unshare",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            "--mount",
            "--mount-proc",
            "--uts",
            "--ipc",
        ]
        command += ["bash", "-c", _NODE, "node", name, str(self.folder / "etc" / "hosts")]
        command += ["slurmd", "-b", "-f", str(self.conf), "-N", name]
        with (self.folder / "log" / f"{name}.txt").open("ab") as log:
            process = subprocess.Popen(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, cwd="/"
            )
        self._inits[node] = process
        if process.stdout is None or process.stdout.readline() != b"up\n":
            raise AssertionError(f"node {node} did not boot\n{self.report()}")

    def cut_power(self, node: str) -> None:
        """Everything on the node is dead at once."""
        process = self._inits.pop(node)
        for pid in _children(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait(READY)
        if process.stdout is not None:
            process.stdout.close()
        self._remove_cgroups(self.nodes[node])

    def cut_off(self, node: str) -> None:
        """End the node's slurmd alone: what it started runs on, and the controller does not reach it."""
        for pid in self.pids(node):
            if command(pid).startswith("slurmd\0"):
                os.kill(pid, signal.SIGKILL)

    def join_again(self, node: str) -> None:
        """The node's slurmd comes back, without a reboot."""
        self.inside(node, "slurmd", "-f", str(self.conf), "-N", self.nodes[node])

    def inside(self, node: str, *command: str) -> str:
        """Run a command in the node's namespaces."""
        init = _children(self._inits[node].pid)[0]
        words = ["nsenter", "-t", str(init), "-m", "-p", "-u", "-i", *command]
        return subprocess.run(
            words, env=self.env, check=True, capture_output=True, text=True, timeout=READY
        ).stdout

    def pids(self, node: str) -> list[int]:
        """All processes on a node, as numbered out here."""
        init = _children(self._inits[node].pid)[0]
        space = os.readlink(f"/proc/{init}/ns/pid")
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{name}/ns/pid") == space:
                        found.append(int(name))
        return found

    def batch(self, job: str) -> list[int]:
        """Processes that slurmd started as a job's batch script, and all that came of them, as numbered out here."""
        found: list[int] = []
        for file in _CGROUPS.glob(f"freezer/slurm_{self.name}*/uid_*/job_{job}/step_batch/cgroup.procs"):
            with contextlib.suppress(OSError):
                found += map(int, file.read_text().split())
        return found

    def counting_on(self, node: str) -> list[int]:
        """Processes of runs on a node."""
        return [
            pid
            for pid in self.pids(node)
            if "outlast_supervisor.cli" in command(pid) or "counter.py" in command(pid)
        ]

    def stop(self) -> None:
        """End what was started, by its own records, and leave no cgroup."""
        for node in list(self._inits):
            self.cut_power(node)
        self._end("slurmctld", signal.SIGKILL)
        self._end("munged", signal.SIGTERM)
        shutil.rmtree(self.folder / "spool", ignore_errors=True)

    # --- asking ---

    def slurm(self, *command: str, check: bool = True, seconds: float = READY) -> str:
        """Run one of Slurm's commands against this cluster, and give its output."""
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=seconds)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: {done.returncode} {done.stderr}\n{self.report()}")
        return done.stdout.strip()

    def job(self, job: str) -> dict[str, str]:
        """What the controller knew of a job at most `_FRESH` ago; empty where it does not answer.

        Many threads wait for many jobs: one question for all of them costs the machine much less.
        """
        with self._asking:
            if time.monotonic() > self._asked_at + _FRESH:
                self._jobs = self._ask_jobs()
                self._asked_at = time.monotonic()
            return self._jobs.get(job, {})

    def _ask_jobs(self) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for line in self.slurm("scontrol", "show", "job", "-a", "-o", check=False).splitlines():
            facts = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if "ArrayTaskId" in facts:
                found[f"{facts['ArrayJobId']}_{facts['ArrayTaskId']}"] = facts
            elif "JobId" in facts:
                found[facts["JobId"]] = facts
        return found

    def state(self, job: str) -> str:
        return self.job(job).get("JobState", "")

    def until_idle(self) -> None:
        names = ",".join(self.nodes.values())

        def idle() -> bool:
            states = self.slurm("sinfo", "-h", "-N", "-n", names, "-o", "%N %t", check=False).split("\n")
            return {line.split()[-1] for line in states if line} == {"idle"}

        self._patiently(idle, "all nodes to be idle")

    def report(self) -> str:
        """All that helps to see what went wrong."""
        parts = [self.slurm("squeue", "-a", check=False), self.slurm("sinfo", "-N", check=False)]
        for log in sorted((self.folder / "log").iterdir()):
            parts.append(f"{log.name}:\n{log.read_text(errors='replace')[-1500:]}")
        return "\n".join(parts)

    def _patiently(self, condition: object, what: str) -> None:
        try:
            wait_until(condition, READY, what)  # type: ignore[arg-type]
        except TimeoutError as late:
            raise AssertionError(f"{late}\n{self.report()}") from None

    def _daemon(self, *command: str) -> None:
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=READY, cwd="/")
        if done.returncode != 0:
            raise AssertionError(f"{command[0]} did not start: {done.stderr}")

    def _end(self, daemon: str, number: int) -> None:
        try:
            pid = int((self.folder / "run" / f"{daemon}.pid").read_text())
        except (OSError, ValueError):
            return
        if not command(pid).split("\0")[0].endswith(daemon):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        wait_until(lambda: not command(pid), READY, f"the end of {daemon}")

    def _remove_cgroups(self, name: str) -> None:
        for top in _CGROUPS.glob(f"*/slurm_{name}"):
            deadline = time.monotonic() + READY
            while top.exists():  # the dead leave them a moment later
                for folder, _, _ in os.walk(top, topdown=False):
                    with contextlib.suppress(OSError):
                        os.rmdir(folder)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"cannot remove {top}")


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has now. They are held together, so that all differ."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command(pid: int) -> str:
    """Words of a process, separated by NUL; empty for one that has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""
