"""With this folder on PYTHONPATH the wall clock is off by the seconds in the file that CLOCK_OFFSET names."""

import os
import time

_true, _file = time.time, os.environ["CLOCK_OFFSET"]


def _off() -> float:
    with open(_file) as file:
        return _true() + float(file.read())


time.time = _off
