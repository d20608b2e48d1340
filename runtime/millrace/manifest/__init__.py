"""The resources of the operator as models."""
