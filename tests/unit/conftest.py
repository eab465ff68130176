"""What all unit tests share."""

from __future__ import annotations

import pytest
import trustme


@pytest.fixture(scope="session", autouse=True)
def _one_authority(tmp_path_factory):
    """Trust one authority, not the usual hundreds: reading those takes longer than most tests."""
    bundle = tmp_path_factory.mktemp("authority") / "ca.pem"
    trustme.CA().cert_pem.write_to_path(bundle)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SSL_CERT_FILE", str(bundle))
        environment.delenv("SSL_CERT_DIR", raising=False)
        yield
