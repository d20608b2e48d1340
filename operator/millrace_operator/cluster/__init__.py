"""The hands on Kubernetes: what children there are, what their pods say, and how a decision is carried out.

Reading is cheap by design: all reads of children come from caches that watches keep, so that a pass over a healthy application
makes no API request. What a cache says may be old. That is harmless: every write is server-side apply or carries the uid of
what was seen, and whatever a write changed comes back through the watch and starts another pass.
"""
