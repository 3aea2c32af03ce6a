"""The error that a person can mend."""


class UserError(Exception):
    """Bad input: a sentence that names the thing and the way out. Scripts print it without a traceback."""


def last_line(error: BaseException) -> str:
    """What an error says, in one line: the last, where a traceback or a heading goes before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].removeprefix(f"{__name__}.UserError: ") if lines else type(error).__name__
