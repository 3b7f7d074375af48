"""Errors that a user can act on, each with the exit code the process ends with."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_CONFIG = 2
EXIT_GATE = 3
EXIT_RETRYABLE = 75
EXIT_NOTHING_TO_DO = 99


class ImagelakeError(Exception):
    """A failure whose message says what happened and what to do; `exit_code` is what the process ends with."""

    exit_code = EXIT_FAILURE


class ConfigError(ImagelakeError):
    """What the user gave is wrong: a file, a key, a value. The message names it."""

    exit_code = EXIT_CONFIG


class GateError(ImagelakeError):
    """A quality rule failed: the data are not what they must be."""

    exit_code = EXIT_GATE


class RetryableError(ImagelakeError):
    """The same command may succeed later, without a change."""

    exit_code = EXIT_RETRYABLE
