from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from workflow_automation_provider.testing import Key, LocalService

from .conftest import KEY


def test_expired_key(serve):
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    service, call = serve(keys=[Key("k", "f", expires_on=yesterday)])
    assert call.by_key(key="k").status_code == 403
    call.by_path(flow_id="f")
    assert call.upload("1001", key="k", flow_id="f").status_code == 403
    assert len(service.runs) == 1


@pytest.mark.parametrize(
    ("expires_on", "expired"),
    [
        (None, False),
        (date(2024, 5, 1), False),
        (date(2024, 4, 30), True),
        (datetime(2024, 5, 1, 12, 1, tzinfo=UTC), False),
        (datetime(2024, 5, 1, 11, 59), True),  # noqa: DTZ001 - taken as UTC
    ],
)
def test_expiry(expires_on, expired):
    assert Key("k", "f", expires_on=expires_on).expired(datetime(2024, 5, 1, 12, tzinfo=UTC)) is expired


def test_exhausted_key_still_uploads_and_stays_exhausted_after_a_restart(serve):
    key = Key("k", "f", max_runs=2)
    service, call = serve(keys=[key])
    assert [call.by_key(key="k").status_code for _ in range(3)] == [201, 201, 403]
    assert call.by_path(flow_id="f").status_code == 201
    assert call.upload("1001", key="k", flow_id="f").status_code == 200
    service.stop()
    service.start()
    assert call.by_key(key="k").status_code == 403


@pytest.mark.parametrize(
    "keys",
    [
        [Key("same", "a"), Key("same", "b")],
        [Key("a", "same"), Key("b", "same")],
    ],
)
def test_keys_must_differ(keys):
    with pytest.raises(ValueError, match="Two keys"):
        LocalService(keys=keys)


def test_key_values_are_neither_shown_nor_journalled(service, call):
    call.by_key()
    call.upload("1001")
    assert "s3cret" not in repr(KEY)
    assert b"s3cret" not in service.journal.path.read_bytes()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"value": ""}, "value is str"),
        ({"value": 31337}, "value is int"),
        ({"flow_id": None}, "flow_id is None"),
        ({"name": ""}, "name is ''"),
        ({"max_runs": -1}, "max_runs is -1"),
        ({"max_runs": True}, "max_runs is True"),
        ({"expires_on": "2026-01-31"}, "expires_on is '2026-01-31'"),
    ],
)
def test_bad_fields_are_named(fields, message):
    with pytest.raises(ValueError, match=f"^{message};"):
        Key(**{"value": "v", "flow_id": "f", **fields})
