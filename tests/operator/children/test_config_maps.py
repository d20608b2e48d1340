"""The ConfigMaps of a revision."""

import pytest
import yaml
from tests.operator.children.apps import FULL, SMALL, revision_of

from millrace.manifest import load
from millrace_operator.children.config_maps import MANIFEST_KEY, PLAN_KEY, plan_config_map, revision_config_map


@pytest.mark.parametrize("spec", [SMALL, FULL], ids=["small", "full"])
def test_manifest_is_read_as_it_was_written(spec, tmp_path):
    """Pods get a manifest that Millrace can read, with the spec as the user wrote it and nothing added."""
    text = revision_config_map(revision_of(spec), spec)["data"][MANIFEST_KEY]
    assert yaml.safe_load(text)["spec"] == spec
    file = tmp_path / "streamsapp.yaml"
    file.write_text(text)
    app = load(file)
    assert app.metadata.name == "orders"
    assert app.spec == revision_of(spec).spec


def test_order_of_keys_does_not_matter():
    """The same spec in another order yields the same immutable ConfigMap."""
    backwards = dict(reversed(FULL.items()))
    assert revision_config_map(revision_of(FULL), FULL) == revision_config_map(revision_of(FULL), backwards)


def test_they_cannot_be_changed():
    """Both are immutable and named after the revision."""
    app = revision_of(SMALL)
    for item in (revision_config_map(app, SMALL), plan_config_map(app, "{}")):
        assert item["immutable"] is True
        assert item["metadata"]["name"].endswith(app.revision)


def test_plan_is_kept_as_it_is():
    """The plan's text is kept byte for byte."""
    text = '{"version": 1,\n "hash": "ü"}\n'
    assert plan_config_map(revision_of(SMALL), text)["data"] == {PLAN_KEY: text}
