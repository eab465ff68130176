"""Start a real Airflow: its database, its components as processes, its REST API."""
