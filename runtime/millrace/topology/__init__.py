"""The physical graph of an application and its sub-topologies."""

from millrace.topology.builder import TopologyBuilder
from millrace.topology.description import (
    GlobalStoreDescription,
    ProcessorDescription,
    SinkDescription,
    SourceDescription,
    SubtopologyDescription,
    TopologyDescription,
)
from millrace.topology.offset_reset import AutoOffsetReset
from millrace.topology.physical_topology import (
    BuiltTopology,
    Node,
    ProcessorNode,
    RepartitionTopic,
    SinkNode,
    SourceNode,
    Subtopology,
)
from millrace.topology.processor_wrapper import ProcessorWrapper
from millrace.topology.topology import Topology

__all__ = [
    "AutoOffsetReset",
    "BuiltTopology",
    "GlobalStoreDescription",
    "Node",
    "ProcessorDescription",
    "ProcessorNode",
    "ProcessorWrapper",
    "RepartitionTopic",
    "SinkDescription",
    "SinkNode",
    "SourceDescription",
    "SourceNode",
    "Subtopology",
    "SubtopologyDescription",
    "Topology",
    "TopologyBuilder",
    "TopologyDescription",
]
