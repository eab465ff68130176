"""The short version of the soak; ``make soak`` runs the long one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from soak import soak

if TYPE_CHECKING:
    from collections.abc import Callable

    from deployment import Deployment
    from workflow_automation_provider.testing import LocalService


def test_soak(deployment: Deployment, service: LocalService, note: Callable[[str], None]) -> None:
    note(soak(deployment, service, instances=40, seconds=240, seed=1))
