"""What the package adds to Airflow's own processes."""

__all__: list[str] = []
