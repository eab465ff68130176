"""
A client for the workflow automation service, built on httpx.

Nothing here depends on Airflow. It is private: use the hook. Public are only the types that the
hook takes and returns: ``Run`` of ``protocol``, ``File`` and ``Element`` of ``files``, and those of
``file_format``.
"""
