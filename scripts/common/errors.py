"""The error that a person can fix."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """Bad input: a sentence that names the thing and the way out. Scripts print it without a traceback."""


def one_line(error: BaseException) -> str:
    """What an error says, in one line; of one that a worker process passed on, the sentence without its traceback."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rpartition("UserError: ")[2]


@contextmanager
def as_user_error(what: str) -> Iterator[None]:
    """Turns whatever another library raises about `what` the user gave it into a `UserError`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what}: {one_line(error)}") from error
