"""Stands for a trainer that a warm process forks: passes on everything, and ends as the trainer ended.

python -S warm_start.py SCRIPT ARGUMENTS…      (with the server's address in WARM_ADDRESS)
"""

import json
import os
import signal
import socket
import sys

server = socket.socket(socket.AF_UNIX)
server.connect(os.environ["WARM_ADDRESS"])
asked = {"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}
socket.send_fds(server, [json.dumps(asked).encode()], [0, 1, 2])
status = int(server.makefile().readline())
code = os.waitstatus_to_exitcode(status)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    os.kill(os.getpid(), -code)
os._exit(code)
