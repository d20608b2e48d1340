"""Pure builders of the objects that make up a running application, as plain mappings in the form that the API takes.

They return what the API server would store: no nulls, no empty maps, quantities in its notation, nothing that depends on the
time or on chance. So drift can be found by comparing the wanted object with the existing one, and a settled application causes
no writes.
"""
