"""How a program in a pod learns the labels of its node."""

import threading

from tests.waiting import wait_until

from millrace.cli.node_labels import LABELS_OF_POD, TOLD, node_labels

ZONE, HALL = "topology.kubernetes.io/zone", "example.com/hall"


def test_labels_that_kubernetes_copied_to_the_pod_are_used_at_once(tmp_path):
    """Newer versions give a pod the labels of its zone and region; nobody has to tell them then."""
    (tmp_path / LABELS_OF_POD).write_text(f'app="orders"\n{ZONE}="eu \\"a\\""\n')
    (tmp_path / TOLD).touch()
    assert node_labels(tmp_path, [ZONE], patience_s=0) == {ZONE: 'eu "a"'}


def test_other_labels_are_awaited_from_the_operator(tmp_path):
    """The file fills when the operator has annotated the pod, and what it says has precedence; a missing label stays missing."""
    (tmp_path / LABELS_OF_POD).write_text(f'{ZONE}="old"\n')
    (tmp_path / TOLD).touch()
    found = {}
    thread = threading.Thread(target=lambda: found.update(node_labels(tmp_path, [ZONE, HALL, "floor"], patience_s=60)))
    thread.start()
    (tmp_path / TOLD).write_text(f'{{"{ZONE}": "a", "{HALL}": "7"}}')
    wait_until(lambda: not thread.is_alive(), "the labels to be read")
    assert found == {ZONE: "a", HALL: "7"}


def test_nobody_is_waited_for_for_ever(tmp_path, caplog):
    """Without an operator the program starts without a rack, and says so."""
    assert node_labels(tmp_path, [ZONE], patience_s=0) == {}
    assert "without client.rack" in caplog.text
