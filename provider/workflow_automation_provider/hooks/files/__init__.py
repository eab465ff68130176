"""The files that a DAG author names: on this machine and in stores, found, read and written."""
