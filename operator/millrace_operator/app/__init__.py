"""The operator as a process: what starts a pass, how often, in which of several replicas, and how that is watched over.

Watches only put keys into a queue. A worker takes a key, looks at everything anew, lets the pure `reconcile` decide, carries the
decision out, and asks for the key again when it is due. So an event may be lost, repeated or late, and a crash may come at any
point: the next pass finds what is missing.
"""
