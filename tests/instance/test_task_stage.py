"""The stages of a task in its thread."""

from __future__ import annotations

import itertools
import re

import pytest

from millrace.engine.task_state import IllegalTaskStateError
from millrace.instance import task_stage
from millrace.instance.task_stage import HeldTask, Stage, WantedTask
from millrace.records import TaskId


def documented():
    """Return the transitions in the module's table."""
    _, stages, transitions = re.split(r"\n\| (?:stage +|from) \|.*\n", task_stage.__doc__)
    assert [line.split()[1] for line in stages.splitlines() if line.startswith("| ")] == [each.name for each in Stage]
    found, sources = set(), []
    for line in transitions.splitlines():
        if line.startswith("| "):
            _, given, to, *_ = (cell.strip() for cell in line.split("|"))
            sources = sources if given == "the same" else given.split(", ")
            found |= {(Stage[source], Stage[to]) for source in sources}
    return found


@pytest.mark.parametrize(("old", "new"), list(itertools.product(Stage, Stage)), ids=lambda stage: stage.name)
def test_a_task_moves_as_the_table_says(old, new):
    """Every transition in the module's table is possible, and any other one is an error that names the task."""
    held = HeldTask(TaskId(0, 1), WantedTask(frozenset()), stage=old)
    if (old, new) in documented():
        held.move(new)
        assert held.stage is new
    else:
        with pytest.raises(IllegalTaskStateError, match=f"task 0_1 cannot go from {old.name} to {new.name}"):
            held.move(new)
        assert held.stage is old
