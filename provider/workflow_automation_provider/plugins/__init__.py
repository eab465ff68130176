"""What the package adds to Airflow's own processes."""
