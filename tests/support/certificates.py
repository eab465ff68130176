"""Certificates of the tests' own."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


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


def issue_outdated_certificate(address: str, folder: Path) -> Certificate:
    """
    Issue a certificate without the Authority Key Identifier that RFC 5280 requires.

    :param address: the IP address that it is for
    :param folder: where its files go
    """
    authority_key = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    is_authority = x509.BasicConstraints(ca=True, path_length=None)
    key_identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])

    authority = (
        _builder("in-house authority", authority_key)
        .add_extension(is_authority, critical=True)
        .add_extension(key_identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        _builder("in-house service", key)
        .add_extension(names, critical=False)
        .sign(authority_key, hashes.SHA256())
    )

    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    issued = Certificate(folder / "outdated-cert.pem", folder / "outdated-ca.pem")
    issued.certfile.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    issued.ca_bundle.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    return issued


def _builder(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    """Return a certificate of the in-house authority that is not signed yet."""
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=_name("in-house authority"),
        subject_name=_name(subject),
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(days=1),
        not_valid_after=now + timedelta(days=1),
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
