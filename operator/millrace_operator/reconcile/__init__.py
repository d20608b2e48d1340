"""Decides what to do about a StreamsApp, as a pure function of what is wanted and what was observed.

`reconciler.reconcile` is the entry point. `conditions` decides which reason each condition of the status gets, and
`condition_reason` explains them all.
"""
