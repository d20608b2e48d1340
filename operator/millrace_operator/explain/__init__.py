"""`millrace explain`: why is this application not processing, and what to do about it?

`loading` reads what there is of an application, with the user's own rights; the pure `findings.explain` turns it into findings,
the most likely cause first; `command` shows them. It changes nothing, and asks neither the operator nor Kafka: so it also works
when these do not.

Nothing is imported here: the command line loads `command` to list it in `millrace --help`.
"""
