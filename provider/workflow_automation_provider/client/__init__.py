"""
A client for the workflow automation service, built on httpx.

Nothing here depends on Airflow: a script can use :class:`FlowClient` on its own.
"""

__all__: list[str] = []
