"""Log lines: JSON to stderr with the run's id, or readable ones on a terminal."""

from __future__ import annotations

import sys
from typing import Any

import structlog


def configure(json_lines: bool | None = None) -> None:
    """`json_lines` None: JSON unless stderr is a terminal."""
    json_lines = not sys.stderr.isatty() if json_lines is None else json_lines
    renderer: Any = structlog.processors.JSONRenderer(ensure_ascii=False) if json_lines else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def logger() -> Any:
    return structlog.get_logger()
