"""Conversations in English, of many lengths, by which models are tried and warmed up; `chat.txt` has a turn a line."""

from pathlib import Path

_TEXT = Path(__file__).with_suffix(".txt").read_text("utf-8")
# The last turn of each is a good reply to the others.
CONVERSATIONS = tuple(tuple(each.splitlines()) for each in _TEXT.split("\n\n"))
