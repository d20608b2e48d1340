"""What operators do with each record: factories of the closures that a task's graph is compiled to.

There is one module per family of operators. The graph knows only their factories, and they know nothing about the graph.
"""
