"""Saves of a training on a GPU, where there is one; on the CPU the same script, so that it is known to hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.listening import Listener, Zygote

from outlast_jobs.look import Verdict, look
from outlast_worker.restoring import digest_generation

SCRIPT = Path(__file__).parent / "scripts" / "on_device.py"
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that CUDA sees")
WIDE = {"WIDTH": "1024"}  # 64 MB of parameters, three times that with their moments


def _through(run: Listener, device: str, code: int = 0, **env: str) -> list[str]:
    """How each save was copied."""
    wide = WIDE if device == "cuda" else {}
    found, output = run.through(OUTLAST_SAVE_EVERY_STEPS="3", ON=device, **wide, **env)
    assert found == code, output
    assert "weights" not in output
    assert "failed" not in output
    return next(line for line in output.splitlines() if line.startswith("how")).split()[1:]


def _states(run: Listener) -> dict[int, str]:
    return {int(step): digest for step, digest in map(str.split, (run.folder / "states").open())}


def _exact(run: Listener) -> None:
    states = _states(run)
    for path in run.generations():
        assert look(path, run.run_id, full=True).verdict is Verdict.VERIFIED
        assert digest_generation(path) == states[int(path.name[5:14])], path.name


@pytest.mark.parametrize(
    ("device", "rehearsals", "aside"),
    [
        ("cpu", "0", {}),
        *(
            pytest.param("cuda", rehearsals, aside, marks=GPU)
            for rehearsals in ("0", "3")
            for aside in ({}, {"ASIDE": "1"})
        ),
    ],
)
def test_what_is_saved_beside_a_loaded_device_is_what_the_device_held(
    run: Listener, device: str, rehearsals: str, aside: dict[str, str]
) -> None:
    """Each generation is the state that the device itself copied at the boundary, with updates on any stream; on a
    GPU it was left to be copied there, straight into the buffer."""
    how = _through(run, device, REHEARSALS=rehearsals, **aside)
    _exact(run)
    mode, host, there, pinned = how[0].split(":")
    assert mode == ("rehearsed" if rehearsals != "0" else "meanwhile")
    if device == "cuda":
        # the counts of steps are on the host
        assert (host, there, pinned) == ("host6", "device18", "pinnedTrue")
    else:
        assert (host, there) == ("host24", "device0")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_a_run_on_a_device_resumes_bit_for_bit(
    run: Listener, device: str, tmp_path: Path, zygote: Zygote
) -> None:
    """Stopped in the middle and taken up again: every state behind it is that of the run that was never stopped."""
    _through(run, device, 75, STOP="8")
    _through(run, device)
    whole = Listener(tmp_path / "whole", zygote)
    (whole.folder / "train.py").write_text(SCRIPT.read_text())
    _through(whole, device)
    whole.close()
    assert _states(run) == _states(whole)
    _exact(run)
