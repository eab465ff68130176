"""Apache Airflow provider for the workflow automation service."""
