"""What is logged, and how it looks."""

from __future__ import annotations

import logging

import structlog


def set_up_logs(level: str) -> None:
    """Structured lines on stderr; the HTTP server's own log goes the same way."""
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.dev.ConsoleRenderer(
                    colors=handler.stream.isatty(),
                    # Local variables stay out of the log: prompts and keys are among them.
                    exception_formatter=structlog.dev.plain_traceback,
                ),
            ],
        )
    )
    logging.basicConfig(level=number, handlers=[handler], force=True)
    logging.getLogger("uvicorn.error").setLevel(max(number, logging.WARNING))
