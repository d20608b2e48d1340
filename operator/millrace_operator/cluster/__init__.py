"""Access to Kubernetes: which children exist, what their pods report, and how a decision is carried out.

Reading is cheap by design: all reads of children come from caches that watches fill, so a pass over a healthy application
makes no API request. A cache may be out of date. That is harmless: every write is a server-side apply or carries the uid of
what was seen, and whatever a write changed comes back through the watch and starts another pass.
"""
