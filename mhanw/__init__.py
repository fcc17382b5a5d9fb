"""The command: executes, verifies and builds the book, and fetches the weights it reads."""


class CallError(Exception):
    """What was asked cannot be done; the message is a sentence for the caller (exit code 2)."""


class ChapterError(Exception):
    """A chapter did not run through; the message is a sentence for its author (exit code 1)."""
