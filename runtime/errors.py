"""The kinds of error that a user can meet: one line that names the thing, what was found and what was expected."""


class KernelcastError(Exception):
    """Base of every error that kernelcast raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(KernelcastError):
    """What was asked for makes no sense: a field, option or layout outside what is allowed (exit code 2)."""

    exit_code = 2


class DataError(KernelcastError):
    """What was read is missing, damaged or does not hold what is needed (exit code 1)."""


def one_line(text: str) -> str:
    """A text whose line breaks and other unprintable characters are escaped: names of files can hold anything."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
