"""
Start a real Airflow: its database, its components as processes, its REST API.

.. code-block:: python

    from airflow_launcher.airflow import Airflow, temporary_home

    with temporary_home("demo") as home, Airflow(home, dags=DAGS, connections={"my_conn": {...}}) as airflow:
        airflow.api.trigger("my_dag", "run-1")
        airflow.api.finished("my_dag", "run-1")

By default an api-server, a scheduler with the LocalExecutor and a DAG processor run on SQLite. Pass
``database=PostgreSQL(home)``, ``components=…`` or ``settings={"CORE__PARALLELISM": "4"}`` for anything else.
"""
