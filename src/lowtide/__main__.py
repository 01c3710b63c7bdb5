"""Run the command line as `python -m lowtide`."""

from lowtide.cli import run

if __name__ == "__main__":
    run()
