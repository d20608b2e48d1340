"""`millrace explain`: why isn't this application processing, and how can it be fixed?

`loading` reads an application's objects with the user's own rights; the pure `explanation.explain` turns them into findings, the
most likely cause first; `command` shows them. It changes nothing, and asks neither the operator nor Kafka: so it also works
when these do not.

Nothing is imported here: the command line loads `command` to list it in `millrace --help`.
"""
