"""Durations, sizes and ranges: what is read, what is refused, and what people are shown."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast_jobs.units import format_duration, format_size, parse_duration, parse_range, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("1h 30m 5s", 5405.0),
        ("7d", 604800.0),
        ("250ms", 0.25),
        ("1.5h", 5400.0),
        ("30 s", 30.0),
        ("1m250ms", 60.25),
        ("04:00:00", 14400.0),
        ("100:00:01", 360001.0),
        ("90", 90.0),
        ("0.5", 0.5),
        ("1e3s", 1000.0),
        (90, 90.0),
        (0.5, 0.5),
        (0, 0.0),
    ],
)
def test_durations_take_units(text: str | float, seconds: float) -> None:
    """A duration is the sum of its parts, a clock time, or a bare number of seconds."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "5x",
        "10M",
        "30m1h",
        "1h1h",
        "1h30",
        "-5s",
        "5:00",
        "1:60:00",
        "inf",
        "nan",
        "1e400",
        "9" * 30,
        "5 5s",
    ],
)
def test_what_is_no_duration_is_refused_with_the_cure(text: str) -> None:
    """A text that could be read in two ways, or in none, is no duration."""
    with pytest.raises(ValueError, match='write it like "30s", "10m", "1h30m", "7d" or "04:00:00"'):
        parse_duration(text)


@pytest.mark.parametrize("number", [math.inf, math.nan, -1, -0.5, 1e12, True])
def test_numbers_that_are_no_duration_are_refused(number: float) -> None:
    """A number of seconds is finite, not negative, and shorter than a thousand years."""
    with pytest.raises(ValueError, match="duration"):
        parse_duration(number)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("20GiB", 20 * 2**30),
        ("500MB", 500_000_000),
        ("1.5KiB", 1536),
        ("0.1GB", 100_000_000),
        ("4 KB", 4000),
        ("7B", 7),
        ("4096", 4096),
        ("2TiB", 2**41),
        (4096, 4096),
    ],
)
def test_sizes_take_units(text: str | int, size: int) -> None:
    """GB counts in thousands, GiB in 1024s, and no byte is lost to rounding."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("20G", 'write "20GiB" or "20GB"'),
        ("1.5mb", 'write "1.5MiB" or "1.5MB"'),
        ("3gib", 'write "3GiB" or "3GB"'),
        ("20 bananas", 'write it like "500MB" or "20GiB"'),
        ("", 'write it like "500MB" or "20GiB"'),
        ("-1GB", 'write it like "500MB" or "20GiB"'),
        ("9999999PiB", 'write it like "500MB" or "20GiB"'),
    ],
)
def test_what_is_no_size_is_refused_with_the_cure(text: str, cure: str) -> None:
    """A unit that means bits to one reader and bytes to another is not guessed at."""
    with pytest.raises(ValueError) as caught:
        parse_size(text)
    assert str(caught.value).endswith(cure)


def test_ranges_have_two_ends() -> None:
    """A range is two durations, the smaller first."""
    assert parse_range("1s..60s") == (1.0, 60.0)
    assert parse_range("500ms .. 1m") == (0.5, 60.0)
    with pytest.raises(ValueError, match=r'write it as "1s\.\.60s"'):
        parse_range("60s..1s")
    for text in ("1s", "1s...60s", "1s-60s", "..", "", "1s..", "1s..2s..3s"):
        with pytest.raises(ValueError, match="write it like"):
            parse_range(text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (0.25, "250 ms"),
        (0.9996, "1 s"),
        (12.34, "12.3 s"),
        (30, "30 s"),
        (59.96, "1m 0s"),
        (303, "5m 3s"),
        (3599.7, "1h 0m"),
        (3900, "1h 5m"),
        (183600, "2d 3h"),
        (-30, "-30 s"),
        (math.inf, "inf"),
    ],
)
def test_durations_are_shown_by_their_two_largest_units(seconds: float, shown: str) -> None:
    """Nothing is ever shown as 60 s or 60 m."""
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (20 * 2**30, "20.0 GiB"),
        (2**60, "1024.0 PiB"),
    ],
)
def test_sizes_are_shown_in_binary_units(size: int, shown: str) -> None:
    """A size keeps one decimal and never shows 1024 of a unit that has a larger one."""
    assert format_size(size) == shown


@settings(deadline=None)
@given(st.floats(min_value=0, max_value=3e10))
def test_any_duration_survives_being_written_with_a_unit(seconds: float) -> None:
    """What is written as a number of seconds is read as that number, to the last bit."""
    assert parse_duration(seconds) == seconds
    assert parse_duration(f"{seconds!r}s") == seconds


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_as_a_value_error(text: str) -> None:
    """No text at all brings anything but a value or a ValueError."""
    for parse in (parse_duration, parse_size, parse_range):
        try:
            parse(text)
        except ValueError:
            pass
