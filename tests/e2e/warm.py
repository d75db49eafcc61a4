"""A process that has imported torch and forks trainers: importing it takes seconds each time.

Such trainers share one hash seed; a test that needs another starts its scripts in the ordinary way.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.waiting import wait_until

_SHIM = Path(__file__).parent / "scripts" / "warm_start.py"

_SERVER = """
import atexit, json, os, runpy, signal, socket, sys, threading, traceback
import numpy, torch, torch._dynamo
import outlast_worker.checkpointer, outlast_worker.batches, outlast_worker.session

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(16)
# By descriptor: a lock of sys.stdin held at a fork would stop the loader processes of a trainer.
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()

def trainer(asked, fds):
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv[:] = asked["argv"]
    sys.path.insert(0, os.path.dirname(asked["argv"][0]))
    code = 0
    try:
        runpy.run_path(asked["argv"][0], run_name="__main__")
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)

def serve(connection):
    data, fds, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    child = os.fork()
    if child == 0:
        listener.close()
        connection.close()
        return json.loads(data), fds
    for fd in fds:
        os.close(fd)
    waiting[child] = connection

waiting = {}
listener.settimeout(0.01)
while True:
    try:
        found = serve(listener.accept()[0])
    except TimeoutError:
        found = None
    if found:
        break
    while waiting and (ended := os.waitpid(-1, os.WNOHANG))[0]:
        with waiting.pop(ended[0]) as connection:
            connection.sendall(f"{ended[1]}\\n".encode())
trainer(*found)
"""


class Warm:
    """The server; ``command`` is what a job file says to have a script run by it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="warm-")  # its path must be short
        self.address = f"{self._folder.name}/s"
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER, self.address], stdin=subprocess.PIPE, cwd="/"
        )
        wait_until(Path(self.address).exists, 60, "the warm process")

    def command(self, script: Path, *arguments: str) -> list[str]:
        return ["{python}", "-S", str(_SHIM), str(script), *arguments]

    @property
    def env(self) -> dict[str, str]:
        return {"WARM_ADDRESS": self.address}

    def close(self) -> None:
        self._process.communicate()
        self._folder.cleanup()
