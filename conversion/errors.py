"""The errors that a person can fix."""


class ConversionError(ValueError):
    """A file that is not what it should be, or a request that cannot be met: a sentence that names the thing and the way out."""


class FactNeeded(ConversionError):
    """A fact that is not in the file, `field` of the configuration or the processor; the sentence says which flag supplies it."""

    def __init__(self, message: str, field: str):
        super().__init__(message)
        self.field = field
