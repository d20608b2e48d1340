"""`StreamsReset`: throwing an application's state away, once: offsets, internal topics and volumes together."""

from millrace_operator.resets.model import DesiredReset, ObservedReset, PatchApp, ResetAction, ResetDecision
from millrace_operator.resets.reconciler import Question, has_ended, question_for, reconcile_reset, with_problem

__all__ = [
    "DesiredReset",
    "ObservedReset",
    "PatchApp",
    "Question",
    "ResetAction",
    "ResetDecision",
    "has_ended",
    "question_for",
    "reconcile_reset",
    "with_problem",
]
