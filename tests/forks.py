"""Children made by fork while other threads of the process are in native code.

In:      Python code that prepares a call, and the call
Out:     nothing, or an assertion with the exit statuses of the children; 14 is one that hung
Memory:  a process of its own, which ends within seconds
"""

from __future__ import annotations

import os
import subprocess
import sys

_PROGRAM = """
import os, signal, threading
{code}
stopped = False
def loop():
    while not stopped:
        {call}

callers = [threading.Thread(target=loop) for _ in range(4)]
for caller in callers:
    caller.start()
statuses = []
for _ in range({children}):
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        {call}
        os._exit(0)
    statuses.append(os.waitpid(child, 0)[1])
    if statuses[-1]:
        break
stopped = True
assert not any(statuses), statuses
"""


def run_children(code: str, call: str, *, children: int) -> None:
    """Fork so many children, one after the other, each of which makes the call once."""
    run_program(_PROGRAM.format(code=code, call=call, children=children))


def run_program(program: str) -> None:
    """Run Python code on the usual build.

    A child that is forked while a thread allocates would wait for a lock of the address sanitizer.
    """
    usual = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "PYTHONPATH")}
    command = [sys.executable, "-W", "ignore", "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=usual)
    assert ran.returncode == 0, ran.stderr
