"""The Kubernetes Job by which a cluster carries a job on: a manifest as plain values, and as YAML.

Fields and rules are those of the batch/v1 API, whose reference describes each (Kubernetes 1.29 or newer, where
`podReplacementPolicy` is on by default; `podFailurePolicy` is since 1.26).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from outlast_jobs.catalog import shipped_jobs
from outlast_jobs.contract import ExitCode

from .systemd import stop_seconds

RUNS = "/outlast"
"""Where the claim with the run directories is mounted."""
JOB = "/job/job.yaml"
"""Where the job file is looked for in the image."""
UNEXPLAINED = 50
"""`backoffLimit`: ends that no rule names (a node that lost power, a whole pod killed for its memory, a volume that
cannot be written), over the whole life of the Job. Kubernetes waits 10 s before the next pod, twice as long each
time, and 10 minutes at most: a volume may be away for some hours, and what never gets better ends within a day."""

HOPELESS = (ExitCode.USAGE, ExitCode.UNUSABLE, ExitCode.HELD)
"""What no further pod makes better: the job file is wrong, no checkpoint is usable, the run is held."""
PASSING = (ExitCode.BUSY, ExitCode.SAVED)
"""What counts against nobody: another supervisor still has the run, or this one saved and wants to go on."""

CONTAINER = "outlast"
_LONGEST = 63  # of a DNS label (RFC 1123), which the names of the pods and a label's value have to be
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUANTITY = re.compile(r"\d{1,15}(\.\d{1,3})?(m|k|[MGTPE]|[KMGTPE]i)?")
_RESOURCE = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
# other readers of YAML take these for a truth value or for nothing
_NO_TEXT = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_PLAIN = re.compile(r"(--)?[A-Za-z/]")


class ManifestError(ValueError):
    """Something that Kubernetes would refuse; the message says what it takes."""


@dataclass(frozen=True)
class Pod:
    """What the caller chooses."""

    name: str
    image: str
    claim: str
    job: str = JOB  # the job file's path in the container, or the name of a job that ships with outlast
    namespace: str | None = None
    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)


def name_of(job: str) -> str:
    """A name that Kubernetes takes, made of a job's."""
    name = re.sub(r"[^a-z0-9]+", "-", job.lower())[:_LONGEST].strip("-")
    if not name:
        raise ManifestError(f'no name for Kubernetes can be made of "{job}"; give one with --name')
    return name


def resources(
    gpu: int | None, cpu: str | None, memory: str | None, others: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Requests and limits. A CPU is asked for and not capped; memory is both; other devices count as limits."""
    requests = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value is not None}
    limits = {"memory": memory} if memory is not None else {}
    if gpu is not None:
        limits["nvidia.com/gpu"] = str(gpu)
    for text in others:
        key, equals, value = text.partition("=")
        if not equals or not _RESOURCE.fullmatch(key):
            raise ManifestError(f'"{text}" is no resource; write it like "amd.com/gpu=1"')
        limits[key] = value
    for key, value in (*requests.items(), *limits.items()):
        if not _QUANTITY.fullmatch(value):
            raise ManifestError(f'"{value}" is no quantity of {key}; write it like "4", "500m" or "32Gi"')
    return requests, limits


def manifest(pod: Pod, run: str, grace: float, extra: Sequence[str] = ()) -> dict[str, Any]:
    """The Job. `run` is the run directory's name below `RUNS`; `grace` is the job's, in seconds.

    Raises ManifestError for what Kubernetes would refuse.
    """
    _check(pod)
    # no shell: the supervisor is the container's first process, to which the kubelet sends SIGTERM
    command = ["outlast", "run", pod.job, "--run-dir", f"{RUNS}/{run}"]
    words = [*command, *(("--", *extra) if extra else ())]
    metadata: dict[str, Any] = {"name": pod.name}
    if pod.namespace is not None:
        metadata["namespace"] = pod.namespace
    wanted = {"requests": dict(pod.requests), "limits": dict(pod.limits)}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": pod.image,
        # `$(NAME)` would be replaced by a variable, and `$$` by one `$`
        "command": [word.replace("$", "$$") for word in words],
        "resources": {kind: values for kind, values in wanted.items() if values},
        "volumeMounts": [
            {"name": "runs", "mountPath": RUNS},
            # loader processes hand batches on through it, and a container is given 64 MiB otherwise
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    if not container["resources"]:
        del container["resources"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": UNEXPLAINED,
            "podReplacementPolicy": "Failed",  # no pod before the last one is gone
            "podFailurePolicy": {"rules": _rules()},
            "template": {
                "spec": {
                    "restartPolicy": "Never",  # what podFailurePolicy demands
                    "terminationGracePeriodSeconds": stop_seconds(grace),
                    "containers": [container],
                    "volumes": [
                        {"name": "runs", "persistentVolumeClaim": {"claimName": pod.claim}},
                        {"name": "shm", "emptyDir": {"medium": "Memory"}},
                    ],
                }
            },
        },
    }


def _rules() -> list[dict[str, Any]]:
    """What the end of a pod means; the first rule that fits counts."""

    def on(action: str, codes: Sequence[ExitCode]) -> dict[str, Any]:
        values = sorted(int(code) for code in codes)  # any other order is refused
        return {
            "action": action,
            "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": values},
        }

    return [
        on("FailJob", HOPELESS),
        on("Ignore", PASSING),
        # preempted, evicted, drained, or on a node that is lost, and killed before it could say 75
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]


def _check(pod: Pod) -> None:
    if not _NAME.fullmatch(pod.name):
        raise ManifestError(
            f'"{pod.name}" is no name for a Job; take lower case letters, digits and "-", 63 at most, '
            "with a letter or digit at both ends"
        )
    if pod.namespace is not None and not _NAME.fullmatch(pod.namespace):
        raise ManifestError(f'"{pod.namespace}" is no name of a namespace')
    if not _SUBDOMAIN.fullmatch(pod.claim) or len(pod.claim) > 253:
        raise ManifestError(f'"{pod.claim}" is no name of a PersistentVolumeClaim')
    if not pod.image or any(c.isspace() for c in pod.image):
        raise ManifestError(f'"{pod.image}" is no name of an image')
    if not pod.job.startswith("/") and pod.job not in shipped_jobs():
        raise ManifestError(f'"{pod.job}" is relative; name the job file in the container by its whole path')


class _Dumper(yaml.SafeDumper):
    """Quotes every text that any reader of YAML could take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    plain = _PLAIN.match(text) and text.lower() not in _NO_TEXT
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def to_yaml(value: Mapping[str, Any]) -> str:
    """A manifest for `kubectl apply -f -`."""
    return yaml.dump(dict(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
