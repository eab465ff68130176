"""What Airflow is told about this package (entry point group ``apache_airflow_provider``)."""
def get_provider_info() -> dict: return {}
