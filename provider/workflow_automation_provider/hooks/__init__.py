"""An Airflow connection becomes a client of the workflow automation service."""

__all__: list[str] = []
