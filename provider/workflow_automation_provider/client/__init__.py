"""
The workflow automation service's interface over httpx.

Nothing here knows of Airflow: a script can use :class:`FlowClient` on its own.
"""

__all__: list[str] = []
