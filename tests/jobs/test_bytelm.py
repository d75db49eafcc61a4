"""The shipped job bytelm: its corpus, the bigram it is held against, its model, and the run as a whole."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.waiting import wait_until

from outlast_jobs.catalog import shipped_jobs

FOLDER = shipped_jobs()["bytelm"].parent
SMALL = ["--steps", "24", "--limit", "1000000", "--width", "32", "--layers", "1", "--sample", "40"]
SMALL += ["--eval-every", "10", "--log-every", "5"]


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bytelm_{name}", FOLDER / f"{name}.py")
    if spec is None or spec.loader is None:
        raise ImportError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


bigram, corpus, model = _module("bigram"), _module("corpus"), _module("model")


def _library(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text)
    return root


def _numbered(count: int) -> dict[str, bytes]:
    return {f"m{number:03d}.py": b"%03d\n" % number for number in range(count)}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As the job itself: on a busy machine threads of a model this small only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- the corpus ---


def test_the_corpus_is_the_library_itself_in_sorted_order(tmp_path: Path) -> None:
    """Source files in the order of their names; no tests, no installed packages, no links, nothing else."""
    left_out = ["site-packages/a.py", "test/a.py", "ctypes/tests/a.py", "idlelib/a.py", "__pycache__/a.py"]
    root = _library(tmp_path, {**_numbered(40), **dict.fromkeys([*left_out, "a.txt", "a.pyc"], b"no\n")})
    _library(root, {"b/z.py": b"bz\n", "a.py": b"a\n", "b.py": b"b\n"})
    (root / "link.py").symlink_to("a.py")
    found = corpus.read_corpus(root)
    assert found.train.startswith(b"a\nb\nbz\n000\n001\n")
    assert b"no" not in found.train + found.held_out
    assert found.identity["files"] == 43


def test_every_twentieth_file_is_held_out_whole(tmp_path: Path) -> None:
    """The parts share no file and together are the whole."""
    found = corpus.read_corpus(_library(tmp_path, _numbered(65)))
    assert found.held_out == b"019\n039\n059\n"
    assert sorted(found.train.split() + found.held_out.split()) == [b"%03d" % n for n in range(65)]


def test_the_corpus_ends_at_its_limit(tmp_path: Path) -> None:
    """Files are read until the limit, and the last one is cut to fit it."""
    found = corpus.read_corpus(_library(tmp_path, _numbered(30)), limit=4 * 21 + 2)
    assert len(found.train) + len(found.held_out) == 4 * 21 + 2
    assert found.train.endswith(b"020\n02")
    assert found.identity["bytes"] == 4 * 21 + 2


def test_the_identity_changes_with_anything_that_is_trained_on(tmp_path: Path) -> None:
    """The same files have the same identity; another byte, another name or another limit has another."""

    def identity(name: str, changes: Mapping[str, bytes], limit: int = 10_000) -> str:
        root = _library(tmp_path / name, {**_numbered(40), **changes})
        return str(corpus.read_corpus(root, limit).identity["sha256"])

    whole = identity("one", {})
    assert whole == identity("two", {})
    others = [
        identity("three", {"m005.py": b"006\n"}),
        identity("four", {"m005b.py": b""}),  # nothing to read in it
        identity("five", {"m005b.py": b"\n"}),
        identity("one", {}, limit=150),
    ]
    assert [other == whole for other in others] == [False, True, False, False]


def test_a_library_without_source_is_refused_by_name(tmp_path: Path) -> None:
    """With too few files to hold one out the error names the folder and the cure."""
    with pytest.raises(FileNotFoundError, match=f'cannot make a corpus from "{tmp_path}": 3 source files'):
        corpus.read_corpus(_library(tmp_path, _numbered(3)))


def test_the_running_pythons_library_is_enough() -> None:
    """The corpus at hand has its eight megabytes at most, two parts, and none of the library's tests."""
    found = corpus.read_corpus()
    assert 2_000_000 < found.identity["bytes"] <= corpus.LIMIT
    assert len(found.held_out) > 50_000
    assert len(found.train) > 10 * len(found.held_out)
    x, y = corpus.split_windows(found.held_out, 128)
    assert 2.5 < bigram.bits_per_byte(bigram.fit(corpus.as_tensor(found.train)), x, y) < 4.5


def test_windows_cover_the_text_and_overlap_by_one_byte(tmp_path: Path) -> None:
    """Each byte but the first is a target once; a window's last byte is the next one's first."""
    found = corpus.read_corpus(_library(tmp_path, _numbered(40)))
    windows = corpus.Windows(found, 8)
    rows = [windows[index] for index in range(len(windows))]
    assert {len(row) for row in rows} == {9}
    targets = torch.cat([row[1:] for row in rows])
    assert bytes(targets.tolist()) == found.train[1 : 1 + 8 * len(rows)]
    assert len(found.train) - 1 - 8 * len(rows) < 8
    assert windows.identity == {**found.identity, "context": 8}


def test_split_windows_pairs_each_byte_with_the_next() -> None:
    """Targets are the inputs one byte later, over all whole windows."""
    x, y = corpus.split_windows(b"abcdefghij", 4)
    assert [bytes(row) for row in x.tolist()] == [b"abcd", b"efgh"]
    assert [bytes(row) for row in y.tolist()] == [b"bcde", b"fghi"]


# --- the bigram ---


def test_the_bigram_is_the_text_s_own_counts() -> None:
    """After `a` comes `b` three times of four: so many bits, and rows that sum to one."""
    table = bigram.fit(corpus.as_tensor(b"ababacab"))
    assert table.exp2().sum(dim=1).allclose(torch.ones(256, dtype=torch.double))
    x, y = torch.tensor([[97, 97]]), torch.tensor([[98, 99]])
    expected = -(torch.tensor([3.01, 1.01]).double() / 6.56).log2().mean()
    assert bigram.bits_per_byte(table, x, y) == pytest.approx(float(expected))


def test_the_bigram_is_sure_of_what_always_follows_and_never_infinitely_wrong() -> None:
    """A text of one pair costs next to nothing; a pair that was never seen costs finitely many bits."""
    table = bigram.fit(corpus.as_tensor(b"ab" * 5000))
    assert bigram.bits_per_byte(table, torch.tensor([97]), torch.tensor([98])) < 0.001
    assert 8 < bigram.bits_per_byte(table, torch.tensor([97]), torch.tensor([122])) < 30


# --- the model ---


def _model(**changes: int) -> Any:
    torch.manual_seed(1)
    return model.ByteLM(**{"width": 32, "layers": 2, "context": 16, "buckets": 64, **changes})


def test_the_model_sees_no_later_byte() -> None:
    """A byte that changes leaves the logits of all positions before it as they were, and not its own."""
    net = _model().eval()
    text = torch.randint(256, (2, 16))
    changed = text.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 256
    before, after = net(text), net(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert (before[:, 9] != after[:, 9]).any(dim=1).all()


def test_the_model_is_untrained_at_eight_bits() -> None:
    """Before training every byte is about as likely as any other."""
    net = _model().eval()
    logits = net(torch.randint(256, (4, 16)))
    assert logits.shape == (4, 16, 256)
    bits = bigram.ln_to_bits(
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(256, (64,))).item()
    )
    assert 7.8 < bits < 8.2


def test_embedding_and_head_are_one_tensor_and_tables_are_not_saved() -> None:
    """The weights are tied, and what can be computed again is not part of the state."""
    net = _model()
    state = net.state_dict()
    assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()
    assert not [name for name in state if name.endswith(("cos", "sin"))]


def test_a_sample_is_drawn_from_its_own_generator_alone() -> None:
    """The same generator state, the same text, past the context too; the process-wide stream is not moved."""
    net = _model()
    before = torch.get_rng_state()
    one, two, other = (net.sample(b"de", 30, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert one == two != other
    assert one.startswith(b"de")
    assert len(one) == 32
    assert torch.equal(before, torch.get_rng_state())
    assert net.training


# --- the run ---


def _environment() -> dict[str, str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("OUTLAST_")}
    return {**env, "OMP_NUM_THREADS": "1"}


def test_without_a_supervisor_it_trains_and_leaves_only_its_sample(tmp_path: Path) -> None:
    """A plain run prints bigram, losses and held-out loss, and writes the sample into the current folder."""
    command = [sys.executable, str(FOLDER / "train.py"), *SMALL]
    done = subprocess.run(
        command, cwd=tmp_path, env=_environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].startswith("bigram: ")
    assert [line.split(":")[0] for line in lines if line.startswith("step ")] == [
        f"step {step}" for step in (5, 10, 10, 15, 20, 20)
    ]
    assert any(line.startswith("held out: ") and line.endswith(" below the bigram") for line in lines)
    assert [path.name for path in tmp_path.iterdir()] == ["sample.txt"]
    assert (tmp_path / "sample.txt").read_text() in done.stdout


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts the job under a supervisor, in the run directory of that name; none of them outlives the test."""
    started: list[subprocess.Popen[bytes]] = []
    outlast = str(Path(sys.executable).with_name("outlast"))

    def run(name: str) -> subprocess.Popen[bytes]:
        command = [outlast, "run", "bytelm", "--run-dir", str(tmp_path / name), "--", *SMALL]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=_environment(), start_new_session=True))
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def test_killed_under_a_supervisor_it_goes_on_and_ends_as_if_it_had_not_been(
    tmp_path: Path, supervised: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    """The supervisor killed in the middle and run again: final state and sample are those of a run that nothing
    disturbed, and the index says what the data was."""

    def steps(name: str) -> int:
        return sum(
            len(path.read_text().splitlines()) - 1 for path in (tmp_path / name / "metrics").glob("*.jsonl")
        )

    def final(name: str) -> dict[str, object]:
        newest = max((tmp_path / name / "checkpoints").glob("step-*/index.json"))
        index = json.loads(newest.read_text())
        assert index["final"]
        assert index["data"]["sha256"]
        return {"state": index["state_sha256"], "data": index["data"]}

    assert supervised("whole").wait(120) == 0
    first = supervised("cut")
    wait_until(lambda: steps("cut") >= 8, 60, "eight steps")
    first.kill()
    first.wait()
    assert supervised("cut").wait(120) == 0
    assert final("cut") == final("whole")
    samples = [(tmp_path / name / "sample.txt").read_text() for name in ("whole", "cut")]
    assert samples[0] == samples[1]
