"""A stand-in for S3 on this machine."""

from __future__ import annotations

import logging
from typing import Any, Self

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "reports"


class LocalS3:
    """A server that speaks S3's interface, as a context manager, with one bucket."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)

    def __enter__(self) -> Self:
        # It logs every request.
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self._at = {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1"}
        access = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
        self._client = boto3.client("s3", **self._at, **access)
        self._client.create_bucket(Bucket=BUCKET)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @property
    def connection(self) -> dict[str, Any]:
        """The Airflow connection to it, as a JSON value."""
        # The connection's test asks STS, for which the URL of the others does not count.
        sts = {"service_config": {"sts": {"endpoint_url": self._at["endpoint_url"]}}}
        return {
            "conn_type": "aws",
            "login": "testing",
            "password": "testing",
            "extra": {**self._at, **sts},
        }

    def put(self, key: str, content: bytes) -> None:
        """Write an object."""
        self._client.put_object(Bucket=BUCKET, Key=key, Body=content)
