"""The physical graph of an application, its sub-topologies, and the plan of what they need."""

from millrace.topology.builder import TopologyBuilder
from millrace.topology.built import BuiltTopology, Subtopology
from millrace.topology.nodes import Node, ProcessorNode, RepartitionTopic, SinkNode, SourceNode
from millrace.topology.offset_reset import AutoOffsetReset
from millrace.topology.plan import TopologyPlan
from millrace.topology.topology import Topology
from millrace.topology.wrapping import ProcessorWrapper

__all__ = [
    "AutoOffsetReset",
    "BuiltTopology",
    "Node",
    "ProcessorNode",
    "ProcessorWrapper",
    "RepartitionTopic",
    "SinkNode",
    "SourceNode",
    "Subtopology",
    "Topology",
    "TopologyBuilder",
    "TopologyPlan",
]
