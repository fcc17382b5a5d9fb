"""Run the command as `python -m mhanw`."""

from mhanw.cli import main

main()
