"""`python -m polyrank.service.cli`: the command, where the console script is not on the path."""

from polyrank.service.cli import command

command()
