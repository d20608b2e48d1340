"""The operator's periodic work."""

import pytest
from kubernetes import client

from millrace_operator.app.operator import Operator
from millrace_operator.app.settings import OperatorSettings
from millrace_operator.cluster.kinds import APPS, BACKFILLS, RESETS
from millrace_operator.model import ResourceRef


class Pauses:
    """Fakes the pauses between rounds without time passing: watches restart during the pauses with the given numbers."""

    def __init__(self, operator, count, begin_anew):
        self.lengths = []
        self._operator, self._count, self._begin_anew = operator, count, begin_anew

    def wait(self, seconds):
        self.lengths.append(seconds)
        if len(self.lengths) == self._count:
            self._operator._stop.set()
        return len(self.lengths) in self._begin_anew

    def clear(self):
        pass


def test_all_is_listed_again_soon_after_the_watches_begin(monkeypatch):
    """Deletions between the first list and the watches are noticed soon; after that, lists are rare."""
    operator = Operator(OperatorSettings(pod_name="o", pod_namespace="n"), client.ApiClient())
    pauses = Pauses(operator, 12, {9})
    listed = []
    monkeypatch.setattr(operator, "_relist_due", pauses)
    monkeypatch.setattr(operator, "_relist", lambda: listed.append(len(pauses.lengths)))
    operator._relist_forever()
    assert pauses.lengths == [5, 10, 20, 40, 80, 160, 320, 600, 600, 5, 10, 20]
    assert listed == list(range(1, 13))


@pytest.mark.parametrize("kind", [BACKFILLS, RESETS])
def test_operation_that_a_list_finds_first_is_worked_on(server, monkeypatch, kind):
    """The watch's event is not new any more when it comes, and nothing else leads to a pass over it."""
    operator = Operator(OperatorSettings(pod_name="o", pod_namespace="n"), server.client)
    metadata = {"name": "again", "namespace": "shop"}
    server.put(f"{kind.path()}/again", {"metadata": metadata, "spec": {"appRef": {"name": "orders"}}})
    added = []
    monkeypatch.setattr(operator._queue, "add", added.append)
    operator._relist()
    assert ResourceRef(kind.kind, "shop", "again") in added
    assert (ResourceRef(APPS.kind, "shop", "orders") in added) == (kind is BACKFILLS)


def test_it_is_known_since_when_the_operator_works():
    """Patience with what it waits for begins then."""
    operator = Operator(OperatorSettings(pod_name="o", pod_namespace="n"), client.ApiClient())
    try:
        operator._begin()
        assert operator._context.working_since > 0
    finally:
        operator._end()
