"""What holds for all tests: Ctrl-C reaches the programs they start; no example is timed."""

from __future__ import annotations

import signal

from hypothesis import settings

# How long an example takes says something of the machine, and nothing of the code.
settings.register_profile("slow", deadline=None)
settings.load_profile("slow")

# A shell starts background jobs with SIGINT ignored, and children inherit that: the programs under
# test would then never hear the Ctrl-C that a test sends them, and wait for it for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
