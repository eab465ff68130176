"""Triggers, which look for a task while it is deferred."""
