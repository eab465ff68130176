"""Decorated tasks wait as the operator does."""

from ..execution.conftest import endpoint, parked, resume, supervisor

__all__ = ["endpoint", "parked", "resume", "supervisor"]
