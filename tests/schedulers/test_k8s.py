"""The Job for Kubernetes: what the published schema and the rules beside it take, and what each end means there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.realparts import REASON

from outlast_jobs.contract import ExitCode
from outlast_supervisor.commands import invoke
from outlast_supervisor.schedulers.k8s import (
    ManifestError,
    Pod,
    manifest,
    name_of,
    resources,
    to_yaml,
)

ALL = [
    "--name",
    "rings-2",
    "--namespace",
    "ml",
    "--gpu",
    "2",
    "--cpu",
    "500m",
    "--memory",
    "1.5Gi",
    "--resource",
    "example.com/nic=1",
    "--job-file",
    "/outlast/rings/job.yaml",
]
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text("name: Rings_of.Saturn\ncommand: [train]\nstop: {grace: 45s}\n")
    return path


def printed(capsys: pytest.CaptureFixture[str], job: Path, *arguments: str) -> dict[str, Any]:
    words = ["k8s", str(job), "--image", "registry.example:5000/rings:1", "--claim", "runs", *arguments]
    assert invoke(words) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("version", ["1.29", "1.37"])
@pytest.mark.parametrize(
    "arguments", [[], ALL, ["--", "--steps", "600", "$(HOME)"]], ids=["least", "all", "words"]
)
def test_the_published_schema_takes_it(
    capsys: pytest.CaptureFixture[str], job: Path, version: str, arguments: list[str]
) -> None:
    """What is printed is valid by the schema of the API, in which no unknown field is allowed."""
    published = pytest.importorskip("kubernetes_validate", reason=f"{REASON}the package kubernetes-validate")
    made = printed(capsys, job, *arguments)
    published.validate(made, version, strict=True)
    made["spec"]["backofLimit"] = 1
    with pytest.raises(published.ValidationError):
        published.validate(made, version, strict=True)


@pytest.mark.parametrize("arguments", [[], ALL], ids=["least", "all"])
def test_it_keeps_the_rules_that_no_schema_tells(
    capsys: pytest.CaptureFixture[str], job: Path, arguments: list[str]
) -> None:
    """The API's own further checks: names are labels, and a failure policy comes with what it demands."""
    made = printed(capsys, job, *arguments)
    spec = made["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    names = [made["metadata"]["name"], container["name"], *(volume["name"] for volume in pod["volumes"])]
    assert all(LABEL.fullmatch(name) and len(name) <= 63 for name in names)
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }
    assert pod["restartPolicy"] == "Never"
    assert spec["podReplacementPolicy"] == "Failed"
    rules = spec["podFailurePolicy"]["rules"]
    assert len(rules) <= 20
    for rule in rules:
        assert rule["action"] in ("FailJob", "Ignore", "Count")
        assert ("onExitCodes" in rule) != ("onPodConditions" in rule)
        if "onExitCodes" in rule:
            values = rule["onExitCodes"]["values"]
            assert values == sorted(set(values))
            assert 0 not in values
            assert rule["onExitCodes"]["operator"] == "In"
            assert rule["onExitCodes"]["containerName"] == container["name"]
    for kind, limit in container.get("resources", {}).get("limits", {}).items():
        assert container["resources"]["requests"].get(kind, limit) == limit


def outcome(made: dict[str, Any], code: int, *conditions: str) -> str:
    """What the API says that a failed pod means: the first rule that fits, else it counts."""
    for rule in made["spec"]["podFailurePolicy"]["rules"]:
        if "onExitCodes" in rule and code in rule["onExitCodes"]["values"]:
            return str(rule["action"])
        if any(c["type"] in conditions and c["status"] == "True" for c in rule.get("onPodConditions", ())):
            return str(rule["action"])
    return "Count"


ENDS = {
    ExitCode.SAVED: "Ignore",
    ExitCode.BUSY: "Ignore",
    ExitCode.USAGE: "FailJob",
    ExitCode.UNUSABLE: "FailJob",
    ExitCode.HELD: "FailJob",
    ExitCode.CANNOT_WRITE: "Count",
    1: "Count",
    137: "Count",
}


def test_every_end_has_its_meaning(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    """Saved comes again uncounted, hopeless fails the Job at once, what may pass counts, a disruption never does."""
    made = printed(capsys, job)
    assert {*ENDS, ExitCode.DONE} >= set(ExitCode)
    assert {code: outcome(made, code) for code in ENDS} == ENDS
    disrupted = {code: outcome(made, code, "DisruptionTarget") for code in ENDS}
    assert {code for code, action in disrupted.items() if action == "FailJob"} == {64, 65, 70}
    assert "Count" not in disrupted.values()
    assert made["spec"]["backoffLimit"] >= 6


def test_what_the_job_file_says_counts(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    """The grace period is the job's grace and what the end takes after it; options come to their places."""
    made = printed(capsys, job, *ALL)
    pod = made["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 45 + 2 + 30
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == ("rings-2", "ml")
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "500m", "memory": "1.5Gi"},
        "limits": {"memory": "1.5Gi", "nvidia.com/gpu": "2", "example.com/nic": "1"},
    }
    command = ["outlast", "run", "/outlast/rings/job.yaml", "--run-dir", "/outlast/rings-2"]
    assert pod["containers"][0]["command"] == command
    assert printed(capsys, job)["metadata"]["name"] == "rings-of-saturn"
    shipped = printed(capsys, Path("toy"), "--", "--steps", "9")
    words = ["outlast", "run", "toy", "--run-dir", "/outlast/toy", "--", "--steps", "9"]
    assert shipped["spec"]["template"]["spec"]["containers"][0]["command"] == words


WRONG = [
    ["--name", "Rings"],
    ["--name", "a" * 64],
    ["--name", "-a"],
    ["--namespace", "a.b"],
    ["--claim", "a_b"],
    ["--image", "two words"],
    ["--job-file", "job.yaml"],
    ["--gpu", "0"],
    ["--cpu", "four"],
    ["--memory", "32 GB"],
    ["--resource", "nic"],
    ["--resource", "a b=1"],
]


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_what_kubernetes_would_refuse_is_refused_here(
    capsys: pytest.CaptureFixture[str], job: Path, arguments: list[str]
) -> None:
    """A name, quantity or path that the API would refuse is bad usage, quoted, and nothing is printed."""
    words = ["k8s", str(job), "--image", "i", "--claim", "c", *arguments]
    assert invoke(words) == 64
    said = capsys.readouterr()
    assert said.out == ""
    assert arguments[1] in said.err


@example("a" * 80)
@example("a" * 62 + "_b")
@settings(max_examples=60, deadline=None)
@given(st.text(max_size=80))
def test_a_jobs_name_becomes_one_that_kubernetes_takes(job: str) -> None:
    """Whatever a job is called, its name there is a DNS label, or there is none and the error says so."""
    try:
        name = name_of(job)
    except ManifestError:
        assert not re.search(r"[a-z0-9]", job.lower())
    else:
        assert LABEL.fullmatch(name)
        assert len(name) <= 63


WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20) | st.sampled_from(
    [
        "y",
        "No",
        "on",
        "null",
        "~",
        "1e3",
        "0x1f",
        "0o17",
        "012",
        "1_000",
        "1:30",
        ".inf",
        "=",
        "<<",
        "- a",
        "a: b",
        "",
    ]
)


def expanded(word: str) -> str:
    """What the kubelet makes of a word of a command, where HOME is set."""
    return re.sub(r"\$\$|\$\(HOME\)", lambda found: "$" if found[0] == "$$" else "/root", word)


@example(["$(HOME)", "$$(HOME)", "$", "$$$"])
@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, max_size=4))
def test_words_stay_texts_for_every_reader(words: list[str]) -> None:
    """A word comes back from YAML as the text that it was, and one that some readers take for another is quoted."""
    made = manifest(Pod("rings", "image", "claim"), "rings", 30.0, words)
    text = to_yaml(made)
    command = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"][0]["command"]
    assert [expanded(word) for word in command][6:] == words
    for line in text.splitlines():
        value = line.strip().removeprefix("- ")
        assert value.lower() not in ("y", "n", "yes", "no", "on", "off", "1e3", "0o17"), line


def test_json_is_the_same(capsys: pytest.CaptureFixture[str], job: Path) -> None:
    """--json prints the same Job, which kubectl takes as well."""
    assert invoke(["k8s", str(job), "--image", "i", "--claim", "c", "--json", "--quiet"]) == 0
    said = capsys.readouterr()
    requests, limits = resources(None, None, None, ())
    pod = Pod("rings-of-saturn", "i", "c", requests=requests, limits=limits)
    assert json.loads(said.out) == manifest(pod, "rings-of-saturn", 45.0)
    assert said.err == ""


def test_it_is_not_loaded_to_run(tmp_path: Path) -> None:
    """`outlast run` imports nothing of this: a supervisor has to be small."""
    code = (
        "import sys, outlast_supervisor.supervise; print('outlast_supervisor.schedulers.k8s' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
