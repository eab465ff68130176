"""Certificates of the tests' own."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import trustme


class Certificate(NamedTuple):
    """
    A server's certificate.

    :param certfile: with its private key, for the server
    :param ca_bundle: the authority that issued it, for the client to trust
    """

    certfile: Path
    ca_bundle: Path


def issue_certificate(host: str, folder: Path, name: str = "server") -> Certificate:
    """
    Issue a certificate by an authority of its own.

    :param host: what it is for
    :param folder: where its files go
    :param name: begins their names
    """
    issued = Certificate(folder / f"{name}-cert.pem", folder / f"{name}-ca.pem")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(issued.ca_bundle)
    authority.issue_cert(host).private_key_and_cert_chain_pem.write_to_path(issued.certfile)
    return issued
