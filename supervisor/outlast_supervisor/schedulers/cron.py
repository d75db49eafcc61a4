"""The lines by which cron carries a job on, and a crontab with them or without: text in, text out.

The forms are those of crontab(5): `@reboot`, five fields, and a command in which `%` ends the command unless a
backslash stands before it.
"""

from __future__ import annotations

import io
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

DEFAULT_PATH = "/usr/bin:/bin"
"""PATH of what cron starts."""
LONGEST = 998
"""Bytes that Debian's crontab(1) takes as one command; it refuses the whole file for a longer one."""
_MAILTO = re.compile(rb"^[ \t]*[\"']?MAILTO[\"']?[ \t]*=(.*)$", re.MULTILINE)
_HOUR, _DAY = 60, 24 * 60  # minutes


class CronError(ValueError):
    """A job cannot be put into a crontab like this; the message says what to change."""


def schedule(seconds: float) -> str:
    """The five fields that mean "every so many seconds": whole minutes that divide the hour, or hours the day."""
    minutes = round(seconds / 60)
    if minutes * 60 == seconds and minutes > 0:
        if minutes < _HOUR and _HOUR % minutes == 0:
            return "* * * * *" if minutes == 1 else f"*/{minutes} * * * *"
        if minutes % _HOUR == 0 and _DAY % minutes == 0:
            hours = minutes // _HOUR
            return {1: "0 * * * *", 24: "0 0 * * *"}.get(hours, f"0 */{hours} * * *")
    raise CronError(
        f"cron cannot start a job every {seconds:g} s; give whole minutes that divide an hour, "
        "or hours that divide a day: 1m, 5m, 10m, 15m, 30m, 1h, 6h"
    )


def carried_path(path: str, job_env: Mapping[str, str]) -> str:
    """What PATH the line has to set, so that the job's command is found as from the caller's shell.

    Empty where the job file sets its own, and where cron's is the same. Relative entries are left out: cron
    starts elsewhere.
    """
    if "PATH" in job_env:
        return ""
    kept = dict.fromkeys(entry for entry in path.split(":") if entry.startswith("/"))
    found = ":".join(kept)
    return "" if found == DEFAULT_PATH else found


def command_line(words: Sequence[str], *, path: str = "", log: str | None = None) -> str:
    """The command as it stands in a crontab: for cron, which cuts at `%`, and then for any shell.

    `log` takes what is said in place of cron's mail. Raises CronError for what no crontab can hold.
    """
    before = ["exec", "env", f"PATH={path}"] if path else ["exec"]
    text = " ".join(_quoted(word) for word in (*before, *words))
    if log is not None:
        text += f" >>{_quoted(log)} 2>&1"
    size = len(os.fsencode(text))
    if size > LONGEST:
        cure = "shorten the path of the job file by a symbolic link to its folder"
        if path:
            cure = 'give the job a PATH of its own (env: {PATH: "…"} in the job file), or ' + cure
        of_path = f", {len(os.fsencode(path))} of them for PATH" if path else ""
        raise CronError(
            f"cron takes a command of at most {LONGEST} bytes, and this one has {size}{of_path}; {cure}"
        )
    return text


def block(key: str, command: str, fields: str) -> bytes:
    """The lines of one job, with a mark around them by which they are found again."""
    lines = [_begin(key), f"@reboot {command}", f"{fields} {command}", _end(key)]
    return b"".join(os.fsencode(line) + b"\n" for line in lines)


def with_block(crontab: bytes, key: str, lines: bytes) -> bytes:
    """A crontab with these lines of a job, in the place of those it had; all else stays as it is."""
    before, after = _around(crontab, key)
    return _ended(before) + lines + _ended(after)


def without_block(crontab: bytes, key: str) -> bytes:
    """A crontab without the lines of a job; all else stays as it is."""
    before, after = _around(crontab, key)
    return _ended(before + after)


def is_mailed(crontab: bytes, key: str) -> bool:
    """Whether cron mails what a job's lines say: an empty MAILTO above them turns that off."""
    found = _MAILTO.findall(_around(crontab, key)[0])
    return not found or found[-1].strip(b" \t\"'") != b""


def _ended(text: bytes) -> bytes:
    """With a line break at its end, since crontab(1) refuses a file without."""
    return text if not text or text.endswith(b"\n") else text + b"\n"


def _around(crontab: bytes, key: str) -> tuple[bytes, bytes]:
    """What stands before and after a job's lines; nothing after where it has none. A second block is dropped."""
    begin, end = os.fsencode(_begin(key)), os.fsencode(_end(key))
    before: list[bytes] = []
    after: list[bytes] = []
    kept, inside = before, False
    for line in io.BytesIO(crontab):
        bare = line.rstrip(b"\n")
        if bare == begin:
            kept, inside = after, True
        elif bare == end and inside:
            inside = False
        elif not inside:
            kept.append(line)
    if inside:
        raise CronError(
            f'the crontab has the line "{_begin(key)}" and not the one that ends it, "{_end(key)}"; '
            "mend that with: crontab -e"
        )
    return b"".join(before), b"".join(after)


def _begin(key: str) -> str:
    return f"# >>> outlast cron {key} >>>"


def _end(key: str) -> str:
    return f"# <<< outlast cron {key} <<<"


def key_of(job_file: str, run_dir: str | None) -> str:
    """What tells a job's lines from those of others: its file, and its run directory where that is not the file's."""
    words: Iterable[str] = (job_file,) if run_dir is None else (job_file, "--run-dir", run_dir)
    return " ".join(_shell(word) for word in words)


def _quoted(word: str) -> str:
    """A word for the shell, then for cron.

    cron makes `%` of a backslash and `%`; of two backslashes some make one and some two, so none follows another.
    """
    text = _shell(word).replace("\\", "\\''") if "\\" in word else _shell(word)
    return text.replace("%", "\\%")


def _shell(word: str) -> str:
    if "\n" in word or "\r" in word:
        raise CronError(f"a line of a crontab cannot hold a line break: {word!r}; rename it")
    return shlex.quote(word)
