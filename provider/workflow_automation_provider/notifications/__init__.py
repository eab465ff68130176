"""Notifiers that start runs of the workflow automation service."""
