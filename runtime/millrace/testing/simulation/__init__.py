"""Runs a topology on many instances in a simulated cluster, with faults, thousands of times, and checks what it writes.

The product's code runs: stream threads' rounds, task managers, group members, assignors, stores. Brokers, networks, disks
and time are simulated, in one thread, and a seed determines everything that happens. So every failure can be repeated.

Example:
    >>> from millrace import Consumed, Produced, Serdes, StreamsBuilder
    >>> text = Serdes.string()
    >>> builder = StreamsBuilder()
    >>> builder.stream("lines", Consumed.with_(text, text)).map_values(str.upper).to("loud", Produced.with_(text, text))
    >>> report = simulate(builder.build(), {"lines": lambda rng: (b"k", rng.choice([b"a", b"b"]))}, seeds=3)
    >>> report.seeds
    3
"""

from millrace.testing.simulation.plan import Fault, Input, Plan
from millrace.testing.simulation.runner import Simulation, SimulationFailure, SimulationReport, simulate
from millrace.testing.simulation.world import Problem, World

__all__ = [
    "Fault",
    "Input",
    "Plan",
    "Problem",
    "Simulation",
    "SimulationFailure",
    "SimulationReport",
    "World",
    "simulate",
]
