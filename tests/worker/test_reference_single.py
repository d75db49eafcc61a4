"""A whole run in one file, by functions that need no supervisor: it comes back bit for bit, or it is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.worker.reference_net import Small
from torch import nn

import outlast_worker
from outlast_jobs.errors import Corrupt, Incomplete, IntegrityError, UnknownSchema
from outlast_jobs.sidecar import publish
from outlast_worker import (
    TrainState,
    atomic_save,
    atomic_write_json,
    capture_rng_state,
    load_checkpoint,
    restore_rng_state,
    save_checkpoint,
)
from outlast_worker.atomic import serialized
from outlast_worker.digest import first_difference
from outlast_worker.migrate import V1, V2
from outlast_worker.parts import PartError
from outlast_worker.ptfile import UnsafeTorch
from outlast_worker.sameness import AnotherIdentity
from outlast_worker.typewalk import NotLoadable

DATA = Path(__file__).parent / "data"

pytestmark = pytest.mark.usefixtures("own_streams")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ckpt.pt"


def save(run: Small, path: Path, **options: Any) -> None:
    save_checkpoint(*run.four, path, parts={"noise": run.noise}, **options)


def load(run: Small, path: Path, **options: Any) -> TrainState:
    return load_checkpoint(path, *run.three, parts={"noise": run.noise}, **options)


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what a checkpoint holds and leave a right digest: only its content can be refused."""
    payload = torch.load(path, weights_only=True)
    change(payload)
    with serialized(payload) as chunks:
        publish(path, chunks)


def test_a_resumed_run_is_the_run(path: Path) -> None:
    """Loaded into another run, a checkpoint makes it go on with the same losses and draws, bit for bit."""
    first = Small(seed=1)
    save(first, path)
    expected, draws = first.train(4), torch.rand(2).tolist()
    second = Small(seed=2, steps=5)
    second.state = load(second, path)
    assert second.state.step == 3
    assert second.state.losses == first.state.losses[:3]
    assert second.train(4) == expected
    assert torch.rand(2).tolist() == draws


def test_the_random_streams_are_left_out_only_on_request(path: Path) -> None:
    """With restore_rng False the process-wide streams stay, and are in the state for a later restore."""
    first = Small(seed=1)
    save(first, path)
    expected = first.train(4)
    second = Small(seed=2)
    before = capture_rng_state()
    second.state = load(second, path, restore_rng=False)
    assert first_difference(before, capture_rng_state()) is None
    assert second.state.rng is not None
    torch.rand(7)  # something that draws: a loader's iterator, say
    restore_rng_state(second.state.rng)
    assert second.train(4) == expected


def test_plain_values_of_the_script_come_back(path: Path) -> None:
    """Counters, losses that are not finite, and the script's own values are what they were, types included."""
    run = Small(steps=0)
    run.state = TrainState(7, 2, 3, [1.5, float("inf")], {"best": np.float64(0.25), "seen": {"a", "b"}})
    save(run, path)
    found = load(Small(steps=0), path)
    assert found == run.state
    assert type(found.extra["best"]) is np.float64


def test_the_payload_loads_with_torch_alone(path: Path) -> None:
    """The file is one that torch.load reads with weights_only, with the schema in it as a string."""
    run = Small()
    save(run, path)
    payload = torch.load(path, weights_only=True)
    assert payload["schema"] == V2
    assert torch.equal(payload["parts"]["model"]["0.weight"], run.net[0].weight)


def test_views_and_shared_memory_are_saved_as_they_are_meant(path: Path) -> None:
    """A view is saved without what it is a view of, and tied weights stay tied."""
    large = torch.zeros(1 << 20)
    written = atomic_save({"view": large[:4], "tied": [large[4:8], large[4:8]]}, path)
    assert written.bytes < 10_000
    found = torch.load(path, weights_only=True)
    found["tied"][0][0] = 5
    assert found["tied"][1][0] == 5
    assert found["view"].tolist() == [0, 0, 0, 0]


def test_content_that_would_not_load_is_refused_before_the_write(path: Path) -> None:
    """A value that saves and can't be loaded is NotLoadable, naming the place; the old checkpoint stays."""
    run = Small()
    save(run, path)
    before = path.read_bytes()
    run.scheduler.step_size = object()
    with pytest.raises(NotLoadable, match=r"^scheduler/step_size: object"):
        save(run, path)
    with pytest.raises(NotLoadable, match=r"^a/0: "):
        atomic_save({"a": [print]}, path)
    assert path.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == ["ckpt.pt", "ckpt.pt.sha256"]


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    """JSON comes back as it was; what JSON has not leaves the old file in its place."""
    target = tmp_path / "new" / "index.json"
    atomic_write_json({"n": 7, "ß": [1.5, None]}, target)
    assert json.loads(target.read_text()) == {"n": 7, "ß": [1.5, None]}
    for value in ({"n": float("nan")}, {"n": {1}}):
        with pytest.raises(ValueError, match=r"'index\.json' can't be written as JSON"):
            atomic_write_json(value, target)
    assert json.loads(target.read_text())["n"] == 7
    assert os.listdir(target.parent) == ["index.json"]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda p: p.update(schema="outlast.ckpt/9"), UnknownSchema, f"reads {V1}, {V2}"),
        (lambda p: p.pop("schema"), UnknownSchema, "has schema 'None'"),
        (lambda p: p.update(schema=["x"]), UnknownSchema, "has schema"),
        (lambda p: p.pop("rng"), Corrupt, "has no 'rng'"),
        (lambda p: p.update(parts=[]), Corrupt, "has no 'parts'"),
        (lambda p: p["counters"].update(step=-1), Corrupt, "'step' is -1"),
        (lambda p: p["counters"].update(epoch=True), Corrupt, "'epoch' is True"),
        (lambda p: p["counters"].pop("batch_in_epoch"), Corrupt, "'batch_in_epoch' is None"),
        (lambda p: p.update(losses=[1.0]), Corrupt, "losses"),
        (lambda p: p["parts"].pop("optimizer"), PartError, "in the script but not in the checkpoint"),
        (lambda p: p["parts"].update(ema={}), PartError, "'ema': is in the checkpoint but not in the script"),
        (lambda p: p["parts"]["model"].pop("0.bias"), PartError, "'0.bias' is in the script but not"),
        (
            lambda p: p["parts"]["model"].update(x=torch.ones(1)),
            PartError,
            "'x' is in the checkpoint but not",
        ),
        (
            lambda p: p["parts"]["model"].update({"0.bias": torch.zeros(5)}),
            PartError,
            "'0.bias' is float32 [6] in the script and float32 [5] in the checkpoint",
        ),
        (
            lambda p: p["parts"]["model"].update({"0.bias": torch.zeros(6, dtype=torch.float64)}),
            PartError,
            "'0.bias' is float32 [6] in the script and float64 [6] in the checkpoint",
        ),
        (lambda p: p["parts"]["optimizer"]["param_groups"].pop(), PartError, "groups of [2, 2] parameters"),
        (lambda p: p["parts"]["optimizer"]["names"].reverse(), PartError, "in the same order"),
        (lambda p: p["kinds"].update(noise="random.Random"), PartError, "is of kind"),
        (lambda p: p["rng"].pop("torch"), ValueError, "random state of torch could not be restored"),
    ],
)
def test_content_that_does_not_fit_is_refused(
    path: Path, change: Any, error: type[Exception], words: str
) -> None:
    """Whatever is missing, surplus or of another form is a named error, never a part left as it was."""
    save(Small(), path)
    rewrite(path, change)
    with pytest.raises(error) as caught:
        load(Small(seed=2), path)
    assert words in str(caught.value)


def test_a_misfit_is_found_before_anything_is_changed(path: Path) -> None:
    """A checkpoint of another model leaves model, optimizer and random streams as they were."""
    save(Small(hidden=5), path)
    run = Small(seed=2)
    before = {key: value.clone() for key, value in run.net.state_dict().items()}, capture_rng_state()
    with pytest.raises(PartError, match=r"float32 \[6, 4\] in the script and float32 \[5, 4\]"):
        load(run, path)
    assert first_difference(before, (dict(run.net.state_dict()), capture_rng_state())) is None


def test_damage_is_found_before_anything_is_changed(path: Path) -> None:
    """A flipped byte is Corrupt, a digest that is missing Incomplete, unless the latter is waived."""
    save(Small(), path)
    run = Small(seed=2)
    before = run.net[0].weight.tolist()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(Corrupt, match="has sha256"):
        load(run, path)
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    path.with_name("ckpt.pt.sha256").unlink()
    with pytest.raises(Incomplete, match="sha256sum"):
        load(run, path)
    assert run.net[0].weight.tolist() == before
    assert load(run, path, require_digest=False).step == 3


def test_other_code_data_or_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other code or data than recorded is refused where given; another environment is told of, or refused."""
    save(Small(), path, code={"sha256": "aa", "commit": "1"}, data={"rows": 24})
    assert load(Small(), path, code={"sha256": "aa"}, data={"rows": 24}, identity="strict").step == 3
    with pytest.raises(AnotherIdentity, match="is of other code: sha256 aa → bb"):
        load(Small(), path, code={"sha256": "bb"})
    with pytest.raises(AnotherIdentity, match="is of other data: name not recorded → mnist"):
        load(Small(), path, data={"rows": 24, "name": "mnist"})
    monkeypatch.setattr(torch, "__version__", "99.0")
    with pytest.warns(RuntimeWarning, match=r"another environment.*torch .*→99\.0"):
        load(Small(), path)
    with pytest.raises(AnotherIdentity, match=r"→99\.0"):
        load(Small(), path, identity="strict")
    with pytest.raises(ValueError, match='give "warn" or "strict"'):
        load(Small(), path, identity="no")  # type: ignore[arg-type]


def test_a_torch_that_cannot_load_safely_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torch before 2.6 nothing is saved and nothing is loaded, and the reason is said."""
    run = Small()
    save(run, path)
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu121")
    for act in (
        lambda: save(run, path),
        lambda: load(run, path),
        lambda: atomic_save({}, path),
        lambda: outlast_worker.save_sharded_checkpoint(*run.four, path.with_name("folder")),
        lambda: outlast_worker.load_sharded_checkpoint(DATA / "step-000000007.a0001", *run.three),
    ):
        with pytest.raises(
            UnsafeTorch, match=r"torch 2\.5\.1.* runs code even with weights_only.*install torch 2\.6"
        ):
            act()


class _Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("was-run",))


def test_a_hostile_file_runs_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle that would run code is Corrupt though its digest is right, and none of its code is run."""
    monkeypatch.chdir(path.parent)
    torch.save({"schema": V2, "parts": _Hostile()}, path)
    publish(path, path.read_bytes())
    with pytest.raises(Corrupt, match=r"the safe loader refuses 'ckpt\.pt'"):
        load(Small(), path)
    for junk in (b"", b"junk", b"PK\x03\x04" + b"\0" * 99, b"\x80\x02}q\x00."):
        publish(path, junk)
        with pytest.raises(IntegrityError):
            load(Small(), path)
    assert not Path("was-run").exists()


@pytest.mark.parametrize("value", [-1, 1.0, True, None])
def test_a_counter_that_is_none_is_not_saved(path: Path, value: Any) -> None:
    """A step that is no whole number from 0 is refused when it is saved."""
    run = Small(steps=0)
    run.state.step = value
    with pytest.raises(ValueError, match="'step'"):
        save(run, path)


def test_a_part_is_not_given_twice(path: Path) -> None:
    """A further part that is called as one of the three would hide it, and is refused."""
    with pytest.raises(ValueError, match="'model' can't be given twice"):
        save_checkpoint(*Small().four, path, parts={"model": nn.Linear(1, 1)})


@pytest.mark.filterwarnings("ignore:.*another environment")
def test_an_older_torch_had_fewer_options(path: Path) -> None:
    """An option that the optimizer got since the save is the script's, and told; all that was saved is restored."""
    save(Small(), path)

    def forget(payload: dict[str, Any]) -> None:
        payload["fingerprint"]["torch"] = "2.6.0"
        for group in payload["parts"]["optimizer"]["param_groups"]:
            del group["fused"]
        del payload["parts"]["scheduler"]["gamma"]

    rewrite(path, forget)
    run = Small(seed=2)
    with pytest.warns(
        RuntimeWarning, match="optimizer: saved without fused.*; scheduler: saved without gamma"
    ):
        assert load(run, path).step == 3
    assert run.optimizer.param_groups[0]["fused"] is None


def test_nothing_hangs_on_asserts(tmp_path: Path) -> None:
    """Under python -O a damaged, a hostile and a mismatched checkpoint are refused all the same."""
    script = """
import os, sys
from pathlib import Path
from tests.worker.reference_net import Small
from outlast_jobs.errors import Corrupt
from outlast_worker import *
run = Small()
save_checkpoint(*run.four, "ckpt.pt")
save_sharded_checkpoint(*run.four, "folder", num_shards=3)
for file, load, path in (
    ("ckpt.pt", load_checkpoint, "ckpt.pt"), ("folder/model.shard-001.pt", load_sharded_checkpoint, "folder")
):
    data = bytearray(Path(file).read_bytes())
    data[99] ^= 1
    Path(file).write_bytes(data)
    try:
        load(path, *run.three)
    except Corrupt as error:
        print("refused", error)
try:
    load_checkpoint("ckpt.pt", Small(hidden=5).net)
except ValueError as error:
    print("refused", error)
print(__debug__)
"""
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-O", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused") == 3
    assert done.stdout.endswith("False\n")


def test_what_is_no_file_is_never_replaced(path: Path) -> None:
    """A pipe or a device at the place of a file is refused and stays: as root, /dev/null would be gone for all."""
    os.mkfifo(path)
    calls: tuple[Callable[[], object], ...] = (
        lambda: save(Small(), path),
        lambda: atomic_save({"a": torch.ones(2)}, path),
        lambda: atomic_write_json({}, path),
    )
    for call in calls:
        with pytest.raises(Corrupt, match="is a named pipe, not a regular file"):
            call()
    assert path.is_fifo()
    assert os.listdir(path.parent) == [path.name]


def test_another_class_of_optimizer_is_refused(path: Path) -> None:
    """What SGD saved has no options of Adam: under one torch nothing fills them in."""
    net = nn.Linear(2, 2)
    save_checkpoint(net, torch.optim.SGD(net.parameters(), lr=0.1), None, TrainState(step=1), path)
    with pytest.raises(PartError, match=r"'optimizer': .*no 'amsgrad'.*Adam"):
        load_checkpoint(path, net, torch.optim.Adam(net.parameters(), lr=0.1))
