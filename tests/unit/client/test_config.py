"""What a client is configured with: the proxy, and the limits of the settings."""

from __future__ import annotations

import pytest

from workflow_automation_provider.client.config import environment_proxy

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({}, "https://service.example/api", None),
        ({"HTTPS_PROXY": PROXY}, "https://service.example/api", PROXY),
        ({"https_proxy": PROXY}, "https://service.example/api", PROXY),
        ({"HTTPS_PROXY": PROXY}, "http://service.example/api", None),
        ({"HTTP_PROXY": PROXY}, "http://service.example/api", PROXY),
        ({"ALL_PROXY": PROXY}, "https://service.example/api", PROXY),
        ({"ALL_PROXY": "http://other", "HTTPS_PROXY": PROXY}, "https://service.example/api", PROXY),
        ({"HTTPS_PROXY": "proxy.example:3128"}, "https://service.example/api", PROXY),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "service.example"}, "https://service.example/api", None),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "a, .example"}, "https://service.example/api", None),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, "https://service.example/api", None),
        (
            {"HTTPS_PROXY": PROXY, "NO_PROXY": "service.example:8443"},
            "https://service.example:8443/api",
            None,
        ),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "service.example:8443"}, "https://service.example/api", PROXY),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "vice.example"}, "https://service.example/api", PROXY),
        ({"HTTPS_PROXY": PROXY, "NO_PROXY": "2001:db8::1"}, "https://[2001:db8::1]:8443/api", None),
    ],
)
def test_proxy_of_the_environment(monkeypatch, variables, url, proxy):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment_proxy(url) == proxy
