"""A real daemon with real supervisors: files steer, ends are obeyed, and its own end ends nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.daemon.yard import ENDS, FAILS, STAYS, Yard
from tests.e2e.harness import OUTLAST

from outlast_jobs.rundir import RunDirectory
from outlast_supervisor.daemon.supervisors import find


def test_files_steer(yard: Yard) -> None:
    """A file starts a job; a change is read at once, its command at the next start; a removal saves and stops."""
    yard.write("a")
    yard.start()
    yard.write("b")
    yard.until_running("a", "b")
    before = yard.worker("a")
    assert before is not None
    yard.write("a", STAYS, env={"TOLD": "anew"}, keep={"last": 7})
    yard.until(lambda: "reloaded" in yard.said(), "the change to be told")
    run = RunDirectory(yard.folder / "runs" / "a")
    yard.until(lambda: "last: 7" in run.job_yaml.read_text(), "the supervisor to read it again")
    assert yard.worker("a") == before, "a change of the file does not end the worker"
    os.kill(before, signal.SIGKILL)
    yard.until(lambda: [b.told for b in yard.begun("a")] == ["", "anew"], "the new command at the next start")
    yard.remove("b")
    yard.until(lambda: "b.yaml: ended" in yard.said(), "its supervisor to end")
    assert "SIGTERM" in yard.supervisor_log("b")
    assert "not done" in yard.supervisor_log("b")
    assert yard.running() == {"a"}
    yard.write("b")
    yard.until_running("a", "b")
    assert [b.attempt for b in yard.begun("b")] == [1, 2], "the run goes on where it was"
    yard.no_doubles()


def test_ends_are_obeyed(yard: Yard) -> None:
    """Done and given up stay so, also for the next daemon, until the file changes; a killed one runs again."""
    yard.write("done", ENDS)
    yard.write("held", FAILS)
    yard.write("stays")
    yard.write("wrong", STAYS, keeep=1)
    yard.start()
    expected = {"done": "done", "held": "held", "stays": "running", "wrong": "refused"}
    yard.until(lambda: yard.states() == expected, "all four ends")
    yard.until_running("stays")  # its state is that of the supervisor; the worker comes a little later
    counts = {name: len(yard.begun(name)) for name in ("done", "held")}
    assert counts == {"done": 1, "held": 2}
    assert "keeep" in yard.said()
    os.kill(yard.supervisors()["stays"].pid, signal.SIGKILL)
    yard.until(lambda: len(yard.begun("stays")) == 2 and yard.running() == {"stays"}, "the killed one")
    yard.kill_daemon()
    then = yard.books()["as_of"]
    yard.start()
    yard.until(lambda: yard.books()["as_of"] > then and yard.states() == expected, "the next daemon")
    assert "started" not in yard.said(), "what is done or held costs the next daemon nothing"
    yard.write("done", ENDS, sick="continue")
    yard.until(lambda: yard.said().count("done.yaml: done") == 1, "the changed file")
    yard.write("held", ENDS)
    yard.until(lambda: yard.states()["held"] == "done", "the mended one")
    assert len(yard.begun("done")) == 1, "another policy is the same command, which is done"
    assert len(yard.begun("held")) == 3
    yard.no_doubles()


def test_its_end_ends_no_training(yard: Yard) -> None:
    """Killed, interrupted or told to end, it leaves every worker alone, and the next one takes them up."""
    for name in "abc":
        yard.write(name)
    yard.start("--slots", "gpu:0,gpu:1,gpu:2")
    yard.until_running("a", "b", "c")
    workers = {name: yard.worker(name) for name in "abc"}
    supervisors = yard.supervisors()
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        yard.daemons[-1].send_signal(number)
        code = yard.daemons[-1].wait(60)
        assert code == (0 if number != signal.SIGKILL else -signal.SIGKILL), yard.report()
        yard.start("--slots", "gpu:0,gpu:1,gpu:2")
        yard.until(lambda: yard.said().count("taken up") == 3 and "watching" in yard.said(), "three taken up")
        assert "started" not in yard.said(), yard.report()
    yard.write("d")
    yard.until(lambda: yard.states().get("d") == "queued", "the fourth to wait for a slot")
    assert {name: yard.worker(name) for name in "abc"} == workers
    assert yard.supervisors() == supervisors
    os.kill(supervisors["b"].pid, signal.SIGTERM)  # its end is seen though it is no child of this daemon
    yard.until(lambda: yard.worker("d"), "the fourth in the place of the second")
    assert "b.yaml: ended: not done (75)" in yard.said()
    assert (yard.begun("d")[-1].gpus, yard.begun("d")[-1].slots) == (
        yard.begun("b")[0].gpus,
        yard.begun("b")[0].slots,
    )
    yard.no_doubles()


def test_after_a_power_cut_it_takes_up_what_ran(yard: Yard) -> None:
    """With every process gone at once, the next daemon starts what ran and what waited, and nothing that was done."""
    yard.write("done", ENDS, daemon={"priority": 9})
    for name in "abc":
        yard.write(name)
    yard.start("--max-running", "2")
    yard.until(lambda: yard.states().get("done") == "done" and len(yard.running()) == 2, "two to run")
    before = yard.running()
    yard.kill_all()
    yard.start("--max-running", "3")
    yard.until_running("a", "b", "c")
    assert {name for name in "abc" if len(yard.begun(name)) == 2} == before
    assert len(yard.begun("done")) == 1
    yard.no_doubles()


def test_draining_stops_everything_until_it_is_resumed(yard: Yard) -> None:
    """Everything saves and stops; nothing starts, not even for a new file or daemon; then all go on."""
    yard.write("a")
    yard.write("b")
    yard.start()
    yard.until_running("a", "b")
    drained = yard.drain()
    assert (drained.returncode, yard.running()) == (0, set()), drained
    assert "SIGTERM" in yard.supervisor_log("a")
    yard.write("c")
    yard.until(lambda: yard.states().get("c") == "queued", "the new one to wait")
    yard.kill_daemon()
    yard.start()
    yard.until(
        lambda: "draining" in yard.said() and set(yard.states().values()) == {"queued"}, "a new daemon"
    )
    assert yard.drain("--resume").returncode == 0
    yard.until_running("a", "b", "c")
    yard.kill_daemon()
    assert yard.drain().returncode == 0, "without a daemon"
    assert yard.supervisors() == {}
    yard.no_doubles()


def test_places_and_slots(yard: Yard) -> None:
    """The highest priority starts first; each job sees its own GPUs alone; one that needs none sees none."""
    yard.write("low", daemon={"priority": -1})
    yard.write("pair", daemon={"priority": 5, "slots": 2})
    yard.write("cpu", daemon={"priority": 4, "slots": 0})
    yard.write("big", daemon={"slots": 9})
    yard.start("--slots", "gpu:3,gpu:7,licence:x", "--max-running", "3")
    yard.until_running("pair", "cpu", "low")
    seen = {name: (yard.begun(name)[0].gpus, yard.begun(name)[0].slots) for name in ("pair", "cpu", "low")}
    environment = (Path("/proc") / str(yard.worker("pair")) / "environ").read_bytes()
    assert b"OUTLAST_DAEMON=" not in environment, "the mark is the supervisor's"
    assert seen == {"pair": ("3,7", "gpu:3,gpu:7"), "cpu": ("", "none"), "low": ("", "licence:x")}
    yard.until(lambda: yard.states().get("big") == "refused", "the one that asks for too much")
    yard.write("next", daemon={"slots": 0})
    yard.until(lambda: yard.states().get("next") == "queued", "no place for a fourth")
    yard.remove("cpu")
    yard.until_running("pair", "low", "next")


def test_who_has_the_run_is_left_alone(yard: Yard) -> None:
    """A run that a person supervises is not taken; the daemon has it when they are done with it."""
    file = yard.write("a")
    with (yard.home / "by-hand.txt").open("wb") as log:
        person = subprocess.Popen(
            [OUTLAST, "run", "-q", str(file)],
            env=yard.env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    yard.until(lambda: yard.worker("a"), "the person's worker")
    yard.start()
    yard.until(lambda: yard.states().get("a") == "elsewhere", "the daemon to see that")
    assert "69" in yard.said()
    person.terminate()
    assert person.wait(60) == 75
    yard.until_running("a")
    yard.no_doubles()


def test_a_renamed_file_and_a_second_one_of_the_same_run(yard: Yard) -> None:
    """A rename disturbs no training; a copy of the file is refused with the name of the first."""
    file = yard.write("a")
    yard.start()
    yard.until_running("a")
    worker = yard.worker("a")
    other = file.rename(file.with_name("b.yaml"))
    yard.until(lambda: list(yard.states()) == ["b"], "the new name")
    (yard.folder / "c.yaml").write_text(other.read_text())
    yard.until(lambda: yard.states().get("c") == "refused", "the copy to be refused")
    assert 'names the run directory of "b.yaml"' in yard.said()
    assert yard.worker("a") == worker
    assert [mark.file for mark in find(yard.folder).values()] == ["a.yaml"]
    yard.write("b", STAYS.replace("1000", "1001"), run_dir="runs/a")
    yard.until(
        lambda: [mark.file for mark in find(yard.folder).values()] == ["b.yaml"],
        "the changed one to start anew",
    )


def test_one_daemon_a_folder(yard: Yard) -> None:
    """A second one is refused, with who has the folder; the first one does not notice."""
    yard.start()
    yard.until(lambda: "watching" in yard.said(), "the daemon")
    second = yard.outlast("daemon", str(yard.folder))
    assert second.returncode == 69
    assert f"process {yard.daemons[0].pid}" in second.stderr
    assert yard.daemons[0].poll() is None
    assert yard.outlast("daemon", str(yard.folder / "none")).returncode == 64
    assert yard.outlast("daemon", str(yard.folder), "--slots", "gpu:0,gpu:0").returncode == 64


def test_status_shows_the_folder(yard: Yard) -> None:
    """Asked for the folder, or in it, status shows its runs, and who waits or is refused and why."""
    yard.write("a", run_dir="elsewhere/a")
    yard.start("--max-running", "1")
    yard.until_running("a")
    yard.write("b")
    yard.write("c", keeep=1)
    yard.until(lambda: yard.states() == {"a": "running", "b": "queued", "c": "refused"}, "three states")
    for told in (yard.outlast("status", str(yard.folder)), yard.outlast("status", cwd=yard.folder)):
        assert told.returncode == 0
        assert "a " in told.stdout.splitlines()[1]
        assert "b.yaml  queued: waits for a place: --max-running is 1" in told.stdout
        assert "c.yaml  refused: " in told.stdout


def test_a_wrong_file_stops_nothing_and_starts_nothing(yard: Yard) -> None:
    """While its file is wrong a job goes on; one that was killed waits; the right file starts it again."""
    file = yard.write("a")
    yard.start()
    yard.until_running("a")
    worker, right = yard.worker("a"), file.read_text()
    file.write_text("name: [")
    yard.until(lambda: "goes on as it was" in yard.said(), "the reason")
    assert yard.worker("a") == worker
    yard.kill_daemon()
    yard.start()
    yard.until(lambda: "goes on as it was" in yard.said(), "the next daemon to leave it alone")
    assert yard.worker("a") == worker
    os.kill(yard.supervisors()["a"].pid, signal.SIGKILL)
    yard.until(lambda: yard.states() == {"a": "refused"}, "the refusal")
    file.write_text(right)
    yard.until_running("a")
    assert [b.attempt for b in yard.begun("a")] == [1, 2]


def test_what_no_event_tells_is_found_by_looking(yard: Yard) -> None:
    """A link is followed to where it leads, and a change there is found at the next look."""
    home = yard.home / "project"
    home.mkdir()
    target = yard.write("a").rename(home / "job.yaml")
    (yard.folder / "a.yaml").symlink_to(target)
    yard.start("--rescan", "0.5")
    yard.until_running("a")
    assert (home / "runs" / "a").is_dir()
    target.write_text(target.read_text() + "sick: continue\n")
    yard.until(lambda: "reloaded" in yard.said(), "the change")
