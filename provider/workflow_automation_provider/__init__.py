"""Apache Airflow provider for the workflow automation service."""

__all__: list[str] = []
