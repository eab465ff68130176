"""Notifiers that start runs of the workflow automation service."""

__all__: list[str] = []
