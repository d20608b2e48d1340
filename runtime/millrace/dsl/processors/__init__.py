"""What the operators do with each record: factories of the closures that a task's graph is compiled to.

Families have a module each. The graph knows them only by their definitions; they know nothing of the graph.
"""
