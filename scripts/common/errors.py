"""The error that a person can mend."""


class UserError(Exception):
    """Bad input: a sentence that names the thing and the way out. Scripts print it without a traceback."""


def one_line(error: BaseException) -> str:
    """What an error says, in one line; of one that a worker process passed on, the sentence without its traceback."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.rpartition("UserError: ")[2]
