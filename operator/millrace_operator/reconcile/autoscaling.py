"""Autoscaling: how many replicas the load asks for."""

from __future__ import annotations

from millrace_operator.reconcile.turn import Turn


def replicas(turn: Turn) -> int:
    """Return how many replicas there are to be while the application runs."""
    return turn.spec.replicas


def recommend(turn: Turn) -> None:
    """Say in the status how many replicas the load asks for."""
    if turn.spec.autoscaling.mode == "Off":
        turn.autoscaling = None
