"""Operators that start runs of the workflow automation service and upload files for them."""
