"""Pure builders of the objects that make up a running application, as plain mappings in the form that the API takes.

They return what the API server would store: no nulls, no empty maps, quantities in its notation, nothing that depends on the
time or on chance. So "is what is wanted part of what is there?" can be answered by comparing, and an application at rest causes
no writes.
"""
