"""`StreamsReset`: where the application starts again, and reading it together with other kinds."""

from __future__ import annotations

import pytest
from tests.manifest import wrong

from millrace.errors import ManifestError
from millrace.manifest import StreamsApp, StreamsBackfill, StreamsReset, check, load, load_all
from millrace.plan.reset import OffsetTarget, Start

ALL = (wrong.GOOD / "minimal.yaml").read_text()
RESET = ALL.split("---\n")[1]


@pytest.mark.parametrize(
    ("to_offset", "target"),
    [
        ("earliest", OffsetTarget(Start.EARLIEST)),
        ("latest", OffsetTarget(Start.LATEST)),
        ("offset:12", OffsetTarget(Start.OFFSET, 12)),
        ("shift:-100", OffsetTarget(Start.SHIFT, -100)),
        ("shift:+7", OffsetTarget(Start.SHIFT, 7)),
        ("timestamp:1970-01-01T00:00:01Z", OffsetTarget(Start.TIMESTAMP_MS, 1000)),
        ("timestamp:1970-01-01T01:00:00.25+01:00", OffsetTarget(Start.TIMESTAMP_MS, 250)),
    ],
)
def test_where_an_application_starts(to_offset, target):
    """Each form of `toOffset` corresponds to an option of `millrace reset`."""
    manifest = wrong.good("minimal")["StreamsReset"]
    manifest["spec"]["toOffset"] = to_offset
    reset, problems = check(manifest, StreamsReset)
    assert reset, problems
    assert reset.spec.target() == target


def test_default_reset_starts_at_the_first_records_and_deletes_all_state():
    """A reset that only names the application is complete, and not a dry run."""
    reset, _ = check(wrong.good("minimal")["StreamsReset"], StreamsReset)
    assert reset
    assert reset.spec.target() == OffsetTarget(Start.EARLIEST)
    assert (reset.spec.delete_internal_topics, reset.spec.delete_volumes, reset.spec.dry_run) == (True, True, False)


def test_kinds_are_read_together():
    """`load_all` returns every kind in the order of the text; `load` returns the StreamsApp among them."""
    assert [type(resource) for resource in load_all(ALL)] == [StreamsApp, StreamsReset, StreamsBackfill]
    assert load(ALL).metadata.name == "smallest"


def test_manifest_with_only_a_reset_has_no_application():
    """The message says what the manifest has instead."""
    with pytest.raises(ManifestError, match=r"holds no StreamsApp .*; it has StreamsReset smallest"):
        load(RESET)


def test_kinds_have_their_own_fields():
    """A problem is explained with its own kind's fields, and for a misspelt kind the closest one is suggested."""
    with pytest.raises(ManifestError, match=r"spec\.apRef: unknown field; did you mean `appRef`"):
        load_all(RESET.replace("appRef", "apRef"))
    with pytest.raises(ManifestError, match="kind: must be `StreamsReset`"):
        load_all(RESET.replace("kind: StreamsReset", "kind: StreamReset"))


def test_nothing_of_millraces_is_an_error():
    """A file with only other kinds is an error, not an empty set of resources."""
    with pytest.raises(ManifestError, match=r"holds no StreamsApp or StreamsReset .* it has Secret \(line 1\)"):
        load_all("apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n")
