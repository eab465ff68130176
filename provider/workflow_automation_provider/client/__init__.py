"""
A client for the workflow automation service, built on httpx.

Nothing here depends on Airflow. It is private: use the hook.
"""
