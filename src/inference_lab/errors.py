"""The errors a user can meet. Each message is one line: the rule, the value, the place, the way out.

LabError                  anything this package refuses; a command prints it and exits with 2
├── InputError            an argument breaks its contract (also a ValueError)
├── ConfigError           config.yaml or a prediction file says something it may not (also a ValueError)
├── RecordError           a recorded file is missing, malformed, or differs from its manifest
└── MeasurementRefused    a measurement that could not be trusted was not started
"""


class LabError(Exception):
    """Anything this package refuses."""

    def __str__(self) -> str:
        return printable(super().__str__())


class InputError(LabError, ValueError):
    """An argument breaks its contract: which one, what it is, what it must be."""


class ConfigError(LabError, ValueError):
    """A declaration breaks its schema: which file and key, what it says, what is allowed."""


class RecordError(LabError):
    """A recorded file is missing, malformed, or differs from its manifest."""


class MeasurementRefused(LabError):
    """A measurement was not started because its numbers could not be trusted."""


def printable(text: str) -> str:
    """The text as a terminal may be given it: what a server or a record says moves no cursor there."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def unread(error: OSError | UnicodeDecodeError) -> str:
    """Why a file gave no text, in words: no number of the system's and no offset."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    what = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
    return f"cannot be read ({what})"
