"""What a run reports to Airflow, and how its task waits for the end."""
