"""The operator's environment."""

import re

import pytest

from millrace_operator.app.settings import SettingsError, settings_from


def test_defaults_need_no_environment():
    """By default all namespaces are watched, and the Lease holder has a unique name."""
    settings = settings_from({})
    assert (settings.namespaces, settings.workers, settings.metrics_port) == ((), 4, 8080)
    assert settings.pod_name


def test_variables_are_read():
    """Each setting is read from the variable of its name; an empty variable counts as unset."""
    settings = settings_from(
        {
            "MILLRACE_OPERATOR_NAMESPACES": "shop, bank,",
            "MILLRACE_OPERATOR_WORKERS": "8",
            "MILLRACE_OPERATOR_LOG_FORMAT": "json",
            "MILLRACE_OPERATOR_LOG_LEVEL": "",
            "MILLRACE_OPERATOR_CLOUD_IDENTITY": "*.shop.kafka.eu-central-1.amazonaws.com:9098, shop.servicebus.windows.net:9093",
            "MILLRACE_OPERATOR_TOKEN_ENDPOINTS": "https://login.example/a, http://login.test",
            "OTHER": "x",
        }
    )
    assert (settings.namespaces, settings.workers, settings.log_format) == (("shop", "bank"), 8, "json")
    assert settings.log_level == "INFO"
    assert settings.cloud_identity == (
        "*.shop.kafka.eu-central-1.amazonaws.com:9098",
        "shop.servicebus.windows.net:9093",
    )
    assert settings.token_endpoints == ("https://login.example/a", "http://login.test")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("WORKERS", "many", "valid integer"),
        ("WORKERS", "0", "greater than or equal to 1"),
        ("NAMESPACES", "a,B_C", "'B_C' is not the name of a namespace"),
        ("TOKEN_ENDPOINTS", "login.example", "'login.example' is not a URL"),
        ("LOG_LEVEL", "LOUD", "'DEBUG', 'INFO'"),
        ("CLOUD_IDENTITY", "kafka", "'kafka' is not host:port"),
        ("CLOUD_IDENTITY", "*:9098", "not host:port"),
        ("RESYNC", "5", "there is no such setting; there are"),
    ],
)
def test_wrong_variable_is_named_with_its_rule(name, value, says):
    """The message has the variable, its value and what it must be."""
    with pytest.raises(SettingsError, match=re.escape(f"MILLRACE_OPERATOR_{name}='{value}'") + f".*{says}"):
        settings_from({f"MILLRACE_OPERATOR_{name}": value})


def test_all_invalid_variables_are_reported_together():
    """A single start reports every mistake."""
    with pytest.raises(SettingsError) as caught:
        settings_from({"MILLRACE_OPERATOR_WORKERS": "x", "MILLRACE_OPERATOR_LEASE_SECONDS": "1"})
    assert len(str(caught.value).splitlines()) == 2
