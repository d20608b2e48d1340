"""Names of children."""

from millrace_operator.children import names

LONGEST = "a" * 52
REVISION = "0123456789"


def test_names_that_become_labels_fit():
    """For the longest name an application may have, names that Kubernetes puts into labels keep within 63 characters."""
    assert len(names.plan_job(LONGEST, REVISION)) <= names.LABEL_LENGTH
    assert len(names.service(LONGEST)) <= names.LABEL_LENGTH
    assert len(f"{names.stateful_set(LONGEST)}-{REVISION}") <= names.LABEL_LENGTH


def test_cut_names_differ():
    """Applications whose long names begin alike have Jobs of different names."""
    assert names.plan_job(LONGEST, REVISION) != names.plan_job(LONGEST[:-1] + "b", REVISION)


def test_cut_names_do_not_carry_two_hyphens_for_one():
    """A name that is cut at a hyphen is still a name."""
    name = names.plan_job("a" * 39 + "-" + "b" * 12, REVISION)
    assert "--" not in name
