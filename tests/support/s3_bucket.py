"""Buckets of an S3 stand-in."""

from __future__ import annotations

from typing import Any

import boto3

ACCESS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}


class Bucket:
    """
    A bucket, and the name of a connection to it.

    :param port: of the stand-in
    """

    def __init__(self, port: int, name: str) -> None:
        self.client: Any = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **ACCESS)
        self.client.create_bucket(Bucket=name)
        self.name = name
        self.conn_id = f"s3_{name.replace('-', '_')}"

    def put(self, **contents: bytes) -> None:
        """Write objects: two underscores in a name stand for a slash."""
        for key, content in contents.items():
            self.write(key.replace("__", "/"), content)

    def write(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=content)

    def read(self, key: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return content

    def keys(self) -> list[str]:
        listed = self.client.list_objects_v2(Bucket=self.name)
        return [entry["Key"] for entry in listed.get("Contents", ())]

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)

    def url(self, path: str = "") -> str:
        return f"s3://{self.conn_id}@{self.name}/{path}"

    def connection(self, port: int) -> dict[str, Any]:
        """
        Return the fields of an Airflow connection.

        :param port: of the stand-in, or of a proxy in front of it
        """
        extra = {
            "endpoint_url": f"http://127.0.0.1:{port}",
            "region_name": "us-east-1",
            # One attempt of botocore's own for each of s3fs', or a store that is down takes a minute. A loaded machine
            # may take longer than s3fs' 5 seconds to connect.
            "config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": 60},
        }
        return {"conn_type": "aws", "login": "testing", "password": "testing", "extra": extra}
