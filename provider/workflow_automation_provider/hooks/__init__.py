"""The hook, which turns an Airflow connection into a client for the workflow automation service."""
