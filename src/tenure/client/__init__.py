"""A client of the sessions interface; needs neither the model nor torch."""

from tenure.client.aio import AsyncClient, AsyncSession
from tenure.client.errors import ApiError, Unreachable
from tenure.client.sync import Client, Session
from tenure.client.types import (
    Closed,
    Place,
    SessionState,
    Turn,
    TurnDetails,
    TurnPiece,
    TurnSummary,
    Usage,
)

__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncSession",
    "Client",
    "Closed",
    "Place",
    "Session",
    "SessionState",
    "Turn",
    "TurnDetails",
    "TurnPiece",
    "TurnSummary",
    "Unreachable",
    "Usage",
]
