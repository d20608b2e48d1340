"""References to files in settings: Kafka's own syntax, helpful errors, and hidden values."""

from __future__ import annotations

import pytest

from millrace.config_providers import files, is_reference, refers, resolve
from millrace.errors import ConfigError


def test_directory_reference_is_the_content_of_a_file(tmp_path):
    """The newline that editors and `kubectl create secret` leave at the end is not part of the value; other space is."""
    (tmp_path / "password").write_text(" s3;c\\ret \n")
    assert resolve("sasl.password", f"${{directory:{tmp_path}:password}}") == " s3;c\\ret "


def test_references_may_be_parts_of_a_value(tmp_path):
    """As in a sasl.jaas.config, which names user and password."""
    (tmp_path / "user").write_text("alice")
    (tmp_path / "password").write_text("secret\n")
    jaas = f'PlainLoginModule required username="${{directory:{tmp_path}:user}}" password="${{directory:{tmp_path}:password}}";'
    assert resolve("sasl.jaas.config", jaas) == 'PlainLoginModule required username="alice" password="secret";'
    assert list(files(jaas)) == [tmp_path / "user", tmp_path / "password"]
    assert refers(jaas)
    assert not is_reference(jaas)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("sasl.password=secret", "secret"),
        ("  sasl.password = se=cr:et", "se=cr:et"),
        ("sasl.password: secret", "secret"),
        ("sasl.password secret", "secret"),
        (r"sasl.password=se\\cr\=et\u0021", r"se\cr=et!"),
        ("sasl.password=sec\\\n    ret", "secret"),
        ("#sasl.password=old\n! sasl.password=older\nsasl.password=secret", "secret"),
        ("sasl.password=first\nsasl.password=secret", "secret"),
        ("sasl.password=", ""),
    ],
)
def test_file_reference_is_a_key_of_a_properties_file(tmp_path, line, value):
    """Properties files are read as Java reads them: separators, escapes, comments, lines that go on."""
    path = tmp_path / "kafka.properties"
    path.write_text(f"other=x\n{line}\nsasl.passwords=y\n")
    assert resolve("sasl.password", f"${{file:{path}:sasl.password}}") == value


@pytest.mark.parametrize("value", [7, None, "plain", "${other:x:y}", "${directory}", "$directory:/a:b"])
def test_values_without_references_are_unchanged(value):
    """Numbers, plain text, and the references of other providers."""
    assert resolve("any", value) is value
    assert not refers(value)


def test_missing_file_is_named_with_its_setting(tmp_path):
    """The error says which setting wants which file, and what to do."""
    with pytest.raises(
        ConfigError, match=rf"sasl\.password refers to {tmp_path}/password, which does not exist: mount"
    ):
        resolve("sasl.password", f"${{directory:{tmp_path}:password}}")
    with pytest.raises(ConfigError, match=r"which cannot be read: Is a directory"):
        resolve("sasl.password", f"${{file:{tmp_path}:key}}")
    path = tmp_path / "kafka.properties"
    path.write_text("other=do-not-show\n")
    with pytest.raises(ConfigError, match=r"refers to the key 'missing' of .*kafka\.properties") as caught:
        resolve("sasl.password", f"${{file:{path}:missing}}")
    assert "do-not-show" not in str(caught.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not text in UTF-8"):
        resolve("sasl.password", f"${{file:{path}:missing}}")


@pytest.mark.parametrize("key", ["../password", "..", "a/b"])
def test_directory_reference_does_not_lead_out_of_its_folder(tmp_path, key):
    """The name of a file in a folder cannot be a path."""
    with pytest.raises(ConfigError, match="name a file in that folder"):
        resolve("sasl.password", f"${{directory:{tmp_path}:{key}}}")


def test_value_of_a_file_does_not_show_in_a_representation(tmp_path):
    """Printing settings with repr does not show secrets."""
    (tmp_path / "password").write_text("do-not-show")
    value = resolve("any", f"${{directory:{tmp_path}:password}}")
    assert value == "do-not-show"
    assert "do-not-show" not in repr({"any": value})
