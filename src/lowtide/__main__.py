"""Run the command line as `python -m lowtide`."""

import sys

from lowtide.cli import main

if __name__ == "__main__":
    sys.exit(main())
