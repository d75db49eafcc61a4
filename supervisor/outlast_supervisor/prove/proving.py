"""One proof: its flows are run stage by stage, compared, and brought to a verdict."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outlast_jobs.generation import GenerationName
from outlast_jobs.jobfile import Job

from . import ask, plan
from .causes import Case, cause, not_repeatable
from .divergence import Divergence, first_divergence
from .drive import Driver, ended_as_cut
from .model import WAYS, Ended, Flow, Leg, Way
from .plan import Cut, Frame
from .progress import Progress
from .tracks import Record, Track, idle_streams, read_track
from .verdicts import (
    ControlVerdict,
    FlowVerdict,
    Whole,
    control_verdict,
    flow_word,
    not_needed,
    rows_of,
    whole,
)

_ONE_WAY: tuple[Way, ...] = ("stop",)


@dataclass(frozen=True)
class Options:
    """What is asked for."""

    job: Job
    output: Path
    steps: int | None = None
    cuts: tuple[int, ...] = ()
    tolerance: float = 0.0
    only: tuple[str, ...] = ()
    side_by_side: int = 2
    keep: bool = False


@dataclass(frozen=True)
class Proof:
    """What a proof came to, with all it rests on."""

    options: Options
    began: float
    seconds: float
    whole: Whole
    last: int
    cuts: tuple[Cut, ...]
    notes: tuple[str, ...]
    flows: tuple[FlowVerdict, ...]
    controls: tuple[ControlVerdict, ...]
    reference: Track
    logs: Path | None = None


class Prover:
    """Runs and compares; everything that it decides is in `plan`, `divergence`, `causes` and `verdicts`."""

    def __init__(self, options: Options, progress: Progress) -> None:
        self._options, self._progress = options, progress
        options.output.mkdir(parents=True, exist_ok=True)
        self._work = Path(tempfile.mkdtemp(prefix="flows-", dir=options.output))
        self._driver = Driver(
            options.job, self._work, options.side_by_side, options.job.hang.min, progress.told, progress.ended
        )
        signals, begin = options.job.signals, _begin(options.job)
        self._frame = Frame(begin, begin + (options.steps or plan.STEPS), signals.save, signals.stop)
        self._idle: frozenset[str] = frozenset()
        self._reference = Track()
        self._probed: bool | None = None

    def prove(self) -> Proof:
        """Carry it all out. What the flows left is removed, but for the logs where something is wrong."""
        began, clock = time.time(), time.monotonic()
        try:
            proof = self._prove(began)
        except BaseException:
            shutil.rmtree(self._work, ignore_errors=True)
            raise
        kept = self._tidy(proof.whole)
        return replace(proof, seconds=time.monotonic() - clock, logs=kept)

    # --- stages ---

    def _prove(self, began: float) -> Proof:
        options, notes = self._options, list[str]()
        first, again = plan.reference(self._frame), plan.repeat(self._frame)
        cuts = [Cut(self._frame.begin + step, "as asked") for step in options.cuts]
        flows = self._cut_flows(cuts)
        repeats = [again] if plan.wanted(again, options.only) else []
        # With the cuts known, what comes before them does not have to wait for the reference.
        self._run([first.legs[0], *(f.legs[0] for f in repeats), *(f.legs[0] for f in flows)])
        self._reference = reference = self._track(first.legs[0])
        trouble = self._trouble(first, cuts)
        if trouble:
            return self._made(began, cuts, notes, [], [], undecided=trouble)
        self._frame = replace(self._frame, last=reference.last)
        self._idle = idle_streams(reference)
        if not cuts:
            cuts, more = plan.choose_cuts(reference.steps)
            notes += more
            flows = self._cut_flows(cuts)
        if strange := self._strange(cuts, flows):
            return self._made(began, cuts, notes, [], [], undecided=strange)
        asked = [flow for flow in self._controls(flows) if plan.wanted(flow, options.only)]
        idle = {f.part: not_needed(f.part, reference, f.cut or 0, self._idle) for f in asked}
        controls = [flow for flow in asked if idle[flow.part] is None]
        shown = [flow for flow in flows if plan.wanted(flow, options.only)]
        self._run(
            [
                *(f.legs[0] for f in flows if f.legs[0].name not in self._driver.ended),
                *(f.legs[1] for f in shown),
                *(f.legs[0] for f in controls),
            ]
        )
        verdicts = [self._repeat_verdict(flow) for flow in repeats]
        verdicts += [self._flow_verdict(flow) for flow in shown]
        told = [idle[flow.part] or self._control_verdict(flow, flows[0]) for flow in asked]
        return self._made(began, cuts, notes, verdicts, told)

    def _cut_flows(self, cuts: Sequence[Cut]) -> list[Flow]:
        """At the first cut, and at each that was asked for, all ways; at a second of our own the first alone.

        The first flow is the one that the controls go on from, so that it is there if they are wanted.
        """
        asked = bool(self._options.cuts)
        every = [
            plan.cut_flow(way, cut.step, self._frame)
            for number, cut in enumerate(cuts)
            for way in (WAYS if asked or number == 0 else _ONE_WAY)
        ]
        return [f for f in every if plan.wanted(f, self._options.only) or f is every[0]]

    def _controls(self, flows: Sequence[Flow]) -> list[Flow]:
        parts = plan.parts_of(self._reference.record(flows[0].cut or 0)) if flows else []
        return [plan.control(part, flows[0], self._frame) for part in parts]

    def _strange(self, cuts: Sequence[Cut], flows: Sequence[Flow]) -> str:
        """What was asked for alone and is no flow and no part: a slip would prove nothing, and call it held."""
        ways = [plan.cut_flow(way, cut.step, self._frame) for cut in cuts for way in WAYS]
        controls = self._controls(flows)
        known = [plan.repeat(self._frame), *ways, *controls]
        for word in self._options.only:
            if not any(plan.wanted(flow, [word]) for flow in known):
                parts = ", ".join(flow.part for flow in controls)
                return f'nothing is called "{word}": --only takes stop, kill, save, repeat, controls, {parts}'
        return ""

    def _trouble(self, first: Flow, cuts: Sequence[Cut]) -> str:
        """Why there is nothing to compare with, or empty."""
        ended, track = self._driver.ended[first.legs[0].name], self._reference
        if not track.attached and ended.clean:
            return (
                "no trainer attached: the job does not use the Checkpointer of outlast_worker, so that its "
                "state cannot be looked at"
            )
        if not ended.clean:
            return f"the uninterrupted run did not end in order: {ended.said}"
        if not track.steps:
            return "the uninterrupted run trained no step"
        late = [cut.step for cut in cuts if not self._frame.begin < cut.step < track.last]
        if late:
            return (
                f"cannot cut at step {late[0]}: the run is cut after a step and before its last, {track.last}"
            )
        if track.last - self._frame.begin < 2:
            return "the run has one step, and nothing to cut"
        return ""

    # --- verdicts ---

    def _repeat_verdict(self, flow: Flow) -> FlowVerdict:
        ended = self._driver.ended[flow.legs[0].name]
        if not ended.clean:
            return FlowVerdict(flow.name, "undecided", cause=ended.said, seconds=ended.seconds)
        return self._against_itself(flow.name, flow.legs[0], ended, upto=None)

    def _against_itself(self, name: str, leg: Leg, ended: Ended, upto: int | None) -> FlowVerdict:
        """Whether a run that nothing has cut yet is the undisturbed one; if not, no resume can be exact."""
        track, tolerance = self._track(leg), self._options.tolerance
        found = first_divergence(
            self._reference, track, saved=self._begun(), idle=self._idle, tolerance=tolerance, upto=upto
        )
        seconds = ended.seconds
        if found is not None:
            why = not_repeatable(Case(found, self._reference, track), self._probe(found))
            why = f"the job differs from itself though nothing cut it: {why}"
            return FlowVerdict(name, "diverged", first=found, cause=why, seconds=seconds)
        rows = rows_of(self._reference, track, self._idle, None, tolerance) if upto is None else ()
        return FlowVerdict(name, flow_word(rows, None), "", len(track.steps), rows, seconds=seconds)

    def _flow_verdict(self, flow: Flow) -> FlowVerdict:
        before, after = (self._driver.ended[leg.name] for leg in flow.legs)
        cut, got = self._track(flow.legs[0]), self._track(flow.legs[1])
        seconds = before.seconds + after.seconds
        if not ended_as_cut(before):
            why = f"the run that was to be cut ended otherwise: {before.said}"
            return FlowVerdict(flow.name, "undecided", cause=why, seconds=seconds)
        own = self._against_itself(flow.name, flow.legs[0], before, upto=cut.last)
        if not own.held:
            return replace(own, seconds=seconds)
        if after.timed_out or after.not_started:
            return FlowVerdict(flow.name, "undecided", cause=after.said, seconds=seconds)
        if not after.clean:
            why = f"the resumed run failed: {after.said}"
            return FlowVerdict(flow.name, "failed", got.restored or "", cause=why, seconds=seconds)
        if not got.restored or not got.steps:
            why = "nothing was resumed, so that there is nothing to compare"
            return FlowVerdict(flow.name, "undecided", cause=why, seconds=seconds)
        return self._compared(flow, cut, got, seconds)

    def _compared(self, flow: Flow, cut: Track, got: Track, seconds: float) -> FlowVerdict:
        options, saved = self._options, cut.record(got.restored_step)
        found = first_divergence(
            self._reference, got, saved=saved, idle=self._idle, tolerance=options.tolerance
        )
        rows = rows_of(self._reference, got, self._idle, None, options.tolerance)
        why = ""
        if found is not None or flow_word(rows, None) != "exact":
            amounts, words = self._measure(flow, found, got)
            rows = rows_of(self._reference, got, self._idle, amounts, options.tolerance)
            if found is not None:
                why = cause(Case(found, self._reference, got, cut, words))
            elif flow_word(rows, None) == "diverged":
                why = (
                    "a state at the last step is further from that of the uninterrupted run than is tolerated"
                )
        steps = sum(step in self._reference.steps for step in got.steps)
        return FlowVerdict(
            flow.name, flow_word(rows, found), got.restored or "", steps, rows, found, why, seconds
        )

    def _control_verdict(self, flow: Flow, donor: Flow) -> ControlVerdict:
        ended = self._driver.ended[flow.legs[0].name]
        if ended.not_started or ended.timed_out or (ended.failure or {}).get("exception") == "UnknownPart":
            return ControlVerdict(flow.part, "undecided", ended.said, seconds=ended.seconds)
        if not ended.clean:
            why = f"the job fails without it: {ended.said}"
            return ControlVerdict(flow.part, "detected", why, seconds=ended.seconds)
        got, cut = self._track(flow.legs[0]), self._track(donor.legs[0])
        if not got.restored or not got.steps:
            return ControlVerdict(flow.part, "undecided", "nothing was resumed", seconds=ended.seconds)
        found = control_verdict(flow.part, self._reference, got, cut.record(got.restored_step), self._idle)
        return replace(found, seconds=ended.seconds)

    def _measure(
        self, flow: Flow, found: Divergence | None, got: Track
    ) -> tuple[ask.Reply | None, Sequence[int | None]]:
        """How large the differences are at the last step, and how many draws a stream is off."""
        requests: list[ask.Request] = []
        checkpoints = self._driver.run_directory(flow.legs[1]).checkpoints
        if found is not None and found.thing == "rng" and got.restored:
            requests.append(ask.draws(checkpoints / got.restored, found.name, [found.old, found.new]))
        one, two = self._final("reference"), self._final(flow.name)
        if one is not None and two is not None:
            requests.append(ask.difference(one, two))
        amounts, words = None, list[int | None]()
        for reply in ask.ask(requests):
            words = reply.get("draws", words)
            amounts = reply.get("parts", amounts)
        return amounts, words

    def _probe(self, found: Divergence) -> bool | None:
        """Whether one hash seed makes two runs agree; None where that was not tried, once and for all."""
        seed = self._reference.fingerprint.get("hash_seed")
        if self._probed is None and seed == "random":
            last = min(self._frame.last, found.step + 1)
            one, two = plan.hash_probes(last)
            self._run([one.legs[0], two.legs[0]])
            first, second = self._track(one.legs[0]), self._track(two.legs[0])
            clean = all(self._driver.ended[flow.legs[0].name].clean for flow in (one, two))
            saved = _without_streams(first.record(first.restored_step), self._idle)
            agree = first_divergence(first, second, saved=saved, idle=self._idle) is None
            self._probed = clean and agree
        return self._probed

    # --- small ---

    def _run(self, legs: Iterable[Leg]) -> None:
        planned = list(legs)
        self._progress.plan(len(planned))
        self._driver.run(planned)

    def _track(self, leg: Leg) -> Track:
        return read_track(self._driver.run_directory(leg).attempt_metrics(leg.attempt))

    def _begun(self) -> Record:
        return _without_streams(self._reference.record(self._frame.begin), self._idle)

    def _final(self, run: str) -> Path | None:
        checkpoints = self._work / run / "checkpoints"
        names = [name for path in checkpoints.iterdir() if (name := GenerationName.parse(path.name))]
        return checkpoints / str(max(names)) if names else None

    def _made(
        self,
        began: float,
        cuts: Sequence[Cut],
        notes: Sequence[str],
        flows: Sequence[FlowVerdict],
        controls: Sequence[ControlVerdict],
        undecided: str = "",
    ) -> Proof:
        partial = bool(self._options.only)
        came = whole(flows, controls, undecided=undecided, partial=partial)
        return Proof(
            options=self._options,
            began=began,
            seconds=0.0,
            whole=came,
            last=self._reference.last,
            cuts=tuple(cuts),
            notes=tuple(notes),
            flows=tuple(flows),
            controls=tuple(controls),
            reference=self._reference,
        )

    def _tidy(self, came: Whole) -> Path | None:
        """Remove what the flows left: all of it where the proof held, else all but the logs and metrics."""
        if self._options.keep:
            return self._work
        if came.answer == 0:
            shutil.rmtree(self._work, ignore_errors=True)
            return None
        for run in self._work.iterdir():
            shutil.rmtree(run / "checkpoints", ignore_errors=True)
        return self._work


def _begin(job: Job) -> int:
    """The step from which the job starts: of another run's generation, or 0."""
    name = GenerationName.parse(Path(job.start_from).name) if job.start_from else None
    return name.step if name is not None else 0


def _without_streams(record: Record, names: frozenset[str]) -> Record:
    """A record for runs that begin afresh: streams that nobody seeds stand elsewhere in each."""
    places = {name: place for name, place in record.get("places", {}).items() if name not in names}
    return {**record, "places": places}
