"""How the local service works; :mod:`workflow_automation_provider.testing` is what to import."""
