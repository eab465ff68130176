"""A stand-in for S3 on this machine."""

from __future__ import annotations

import logging
from typing import Any, Self

import boto3
from moto.server import ThreadedMotoServer

_ACCESS = {"login": "testing", "password": "testing"}
_REGION = "us-east-1"


class LocalS3:
    """
    A server that speaks S3's interface, as a context manager, with one bucket.

    :param bucket: the name of the bucket
    """

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)

    def __enter__(self) -> Self:
        # It logs every request.
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"
        self.client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=_ACCESS["login"],
            aws_secret_access_key=_ACCESS["password"],
            region_name=_REGION,
        )
        self.client.create_bucket(Bucket=self.bucket)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    @property
    def connection(self) -> dict[str, Any]:
        """The Airflow connection to it, as a JSON value."""
        return {
            "conn_type": "aws",
            **_ACCESS,
            "extra": {
                "endpoint_url": self.endpoint,
                "region_name": _REGION,
                # The connection's test asks STS, for which the URL above does not count.
                "service_config": {"sts": {"endpoint_url": self.endpoint}},
            },
        }

    def put(self, key: str, content: bytes) -> None:
        """Write an object."""
        self.client.put_object(Bucket=self.bucket, Key=key, Body=content)
