"""A curve in a bounded number of points, however many it is given; its highest and lowest stay where they were."""

from __future__ import annotations

from collections.abc import Iterator

_MOST = 1200  # buckets; a page is some thousand points wide
_LARGEST = 1e100  # of what can be drawn: the distance of two has to be a number too


class Curve:
    """Values by step, taken in the order of the steps. What is not finite, or absurd, is counted and left out."""

    def __init__(self) -> None:
        self.odd = 0
        """Values that can't be drawn: NaN, infinities, and those beyond 1e100."""
        self.first_odd: int | None = None
        self._width = 1  # steps of a bucket
        self._buckets: dict[int, list[tuple[int, float]]] = {}  # of each its lowest and its highest point

    def add(self, step: int, value: float) -> None:
        """The next value; steps never go back."""
        if not abs(value) < _LARGEST:
            self.odd += 1
            self.first_odd = step if self.first_odd is None else self.first_odd
            return
        self._put(step, value)
        while len(self._buckets) > _MOST:
            points = list(self)
            self._width *= 2
            self._buckets = {}
            for point in points:
                self._put(*point)

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """The points that are left, by step."""
        for found in self._buckets.values():
            yield from sorted(set(found))

    def _put(self, step: int, value: float) -> None:
        bucket = self._buckets.setdefault(step // self._width, [(step, value)] * 2)
        if value < bucket[0][1]:
            bucket[0] = (step, value)
        if value > bucket[1][1]:
            bucket[1] = (step, value)
