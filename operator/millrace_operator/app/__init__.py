"""The operator as a process: what starts a pass, how often, in which replica, and how that is monitored.

Watches only put keys into a queue. A worker takes a key, observes everything again, lets the pure `reconcile` decide, carries out
the decision, and schedules the key for its next pass. So events may be lost, repeated or late, and a crash may happen at any
point: the next pass finds what is missing.
"""
