"""What a user is told when something is wrong: one line, what to do, and the exit code."""


class LensAuditError(Exception):
    """A message for the user; never a traceback. `exit_code` follows the table in the README."""

    exit_code = 1


class InputError(LensAuditError):
    """Wrong usage or bad input, found before work starts."""

    exit_code = 2


class WorkError(LensAuditError):
    """Failed while working; the message says what is kept."""

    exit_code = 1


class PartialError(LensAuditError):
    """Some units of a many-unit run failed; the message lists them."""

    exit_code = 3


class VerificationError(LensAuditError):
    """A verification or a gate failed."""

    exit_code = 4


class TryAgainError(LensAuditError):
    """A passing condition: the disk is full, a lock is held."""

    exit_code = 75
