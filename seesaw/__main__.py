"""`python -m seesaw` is the command `seesaw`."""

from seesaw.runner.cli import command

command()
