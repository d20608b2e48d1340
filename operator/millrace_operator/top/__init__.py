"""`millrace top`: a live view of a running application, on this machine or in Kubernetes.

`sources` asks all instances for their status, the pure `view` draws what they say, and `command` repeats both.
It changes nothing.

Nothing is imported here: the command line loads `command` to list it in `millrace --help`.
"""
