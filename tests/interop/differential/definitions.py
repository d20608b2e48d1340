"""The topologies that are compared: their inputs and configuration, shared by Java and Python, and the Python definitions.

They are the topologies of the golden cases, and more like them: `tests/topologies/more_*`, which `Extra*.java` defines too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from tests.golden.cases import CASES
from tests.topologies import more_joins, more_processors, more_streams, more_tables, more_windows
from tests.topologies.by_name import TOPOLOGIES
from tests.topologies.support import dsl

OPTIMIZED = {"topology.optimization": "all"}
EAGER_WINDOWS = {"__emit.interval.ms.kstreams.windowed.aggregation__": "0"}
EAGER_JOINS = {"__emit.interval.ms.kstreams.outer.join.spurious.results.fix__": "0"}
_ERRORS = "org.apache.kafka.streams.errors."
CONTINUE = {"processing.exception.handler": _ERRORS + "LogAndContinueProcessingExceptionHandler"}
DLQ = {"errors.dead.letter.queue.topic.name": "dlq"}
SKIP_UNREADABLE = {"deserialization.exception.handler": _ERRORS + "LogAndContinueExceptionHandler"}
SKIP_NEGATIVE = {"default.timestamp.extractor": "org.apache.kafka.streams.processor.LogAndSkipOnInvalidTimestamp"}

ONE, TWO, THREE = ("in:word",), ("in1:word", "in2:word"), ("in1:word", "in2:word", "in3:word")
FOREIGN = ("in1:fkleft", "in2:letter:word")
REKEYED = ("in1:word", "in2:letter:word")
GLOBAL = ("in1:word", "g:letter:word")


@dataclass(frozen=True, slots=True)
class Compared:
    """One topology."""

    name: str
    build: Callable[..., Any]
    inputs: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    """Without inputs it is only described."""


def _golden() -> dict[str, Compared]:
    found = {}
    for file in sorted(CASES.glob("*/case.json")):
        case = json.loads(file.read_text())
        name = case["topology"]
        found[name] = Compared(name, TOPOLOGIES[name], tuple(case["inputs"]), case["config"])
    for name, like, settings in (
        ("fk_left", "fk_inner", {}),
        ("opt_reparts_join_all", "opt_reparts_join_none", OPTIMIZED),
    ):
        found[name] = Compared(name, TOPOLOGIES[name], found[like].inputs, settings)
    return found


_INPUTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("print_named",), ()),
    **dict.fromkeys(("pattern_source", "reparts_many", "reparts_merge", "repartition_then_join", "ts_skip_join"), TWO),
    **dict.fromkeys(("cogroup_session", "cogroup_sliding", "cogroup_named"), TWO),
    "cogroup_rekey": ("in1:word", "in2:word", "in3:letter:word"),
    "branches_nested": ("in:word", "in2:word"),
    "table_deser_continue": ("in:long",),
    "ktable_group_inttable": ("in:int",),
    **dict.fromkeys(("fk_self", "tt_self", "versioned_chain"), ONE),
    "fk_self": ("in1:word",),
    "tt_chain": THREE,
    "suppress_joined": TWO,
    **dict.fromkeys(("ss_left_self", "ss_outer_self", "ss_self_rekey", "ss_self_asym"), ("in1:word",)),
    "ss_three": THREE,
    "st_own_aggregate": ONE,
    **dict.fromkeys(("st_grace_left", "st_grace_zero"), ("in1:somekey:word", "in2:word")),
    **dict.fromkeys(("st_grace_rekey", "joins_mixed"), REKEYED),
    **dict.fromkeys(("global_named", "global_from_table"), GLOBAL),
    "global_inmem": ("in1:word", "g:word"),
    "global_two": ("in1:word", "g:letter:word", "g2:word"),
    "global_store_dsl": ("in:word", "g:letter:word"),
    "joins_mixed": ("in1:word", "in2:letter:word", "g:letter:word"),
    **dict.fromkeys(("papi_read_only", "papi_global_persistent"), ("in:word", "g:letter:word")),
    "papi_two_tasks": TWO,
}
"""Overrides for topologies that differ from the others in their module."""

_SETTINGS: dict[str, Mapping[str, str]] = {
    "emit_sliding": EAGER_WINDOWS,
    "emit_session_agg": EAGER_WINDOWS,
    "emit_tumbling_ret": EAGER_WINDOWS,
    "emit_then_count": EAGER_WINDOWS,
    "table_deser_continue": SKIP_UNREADABLE,
    "ts_skip_join": SKIP_NEGATIVE,
    "fk_all": OPTIMIZED,
    "ktable_group_sources": OPTIMIZED,
    "ss_self_asym": OPTIMIZED,
    "ss_left_interval": {},
}
_BOTH = frozenset(
    {
        "reparts_many",
        "reparts_merge",
        "repartition_then_join",
        "cogroup_rekey",
        "table_versioned",
        "tt_rekeyed",
        "ss_left_self",
        "ss_self_rekey",
        "st_same_topic",
    }
)
"""Compared without and with the optimiser, under names that end in `_none` and `_all`."""
_RENAMED = {"ktable_group_sources": "ktable_group_sources_all", "ss_self_asym": "ss_self_asym_all"}
_HANDLERS = {
    "handler_continue": CONTINUE,
    "handler_continue_dlq": {**CONTINUE, **DLQ},
    "handler_fail": {},
}


def _defined(module: ModuleType) -> dict[str, Callable[..., None]]:
    return {
        name: define
        for name, define in vars(module).items()
        if callable(define)
        and getattr(define, "__module__", None) == module.__name__
        and name[0] != "_"
        and not isinstance(define, type)
        and name not in {"versioned", "one_store", "failing"}
    }


def _inputs(name: str) -> tuple[str, ...]:
    if name in _INPUTS:
        return _INPUTS[name]
    if name.startswith("fk_"):
        return FOREIGN
    return TWO if name.startswith(("tt_", "ss_", "st_")) else ONE


def _extra() -> dict[str, Compared]:
    definitions: dict[str, Callable[..., Any]] = {}
    for module in (more_streams, more_tables, more_windows, more_joins):
        definitions |= {name: dsl(define) for name, define in _defined(module).items()}
    definitions |= {name: dsl(define) for name, define in more_joins.STREAM_JOINS.items()}
    definitions |= _defined(more_processors)
    definitions |= {name: more_processors.one_store(name) for name in more_processors.ONE_STORE}
    found = []
    for name, build in definitions.items():
        outer = name.startswith(("ss_left", "ss_outer", "ss_named", "ss_logged", "ss_key", "ss_three", "ss_window"))
        settings = _SETTINGS.get(name, EAGER_JOINS if outer else {})
        if name in _BOTH:
            found.append(Compared(f"{name}_none", build, _inputs(name), settings))
            found.append(Compared(f"{name}_all", build, _inputs(name), {**settings, **OPTIMIZED}))
        else:
            found.append(Compared(_RENAMED.get(name, name), build, _inputs(name), settings))
    failing = dsl(more_streams.failing)
    found += [Compared(name, failing, ONE, settings) for name, settings in _HANDLERS.items()]
    return {compared.name: compared for compared in found}


GOLDEN: dict[str, Compared] = _golden()
EXTRA: dict[str, Compared] = _extra()
COMPARED: dict[str, Compared] = {**GOLDEN, **EXTRA}
