"""What holds for all tests: Ctrl-C reaches the programs they start; slow builds get their time."""

from __future__ import annotations

import signal

from hypothesis import settings

# For builds that check every access, as `make sanitize` makes them.
settings.register_profile("slow", deadline=None)

# A shell starts background jobs with SIGINT ignored, and children inherit that: the programs under
# test would then never hear the Ctrl-C that a test sends them, and wait for it for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
