"""Serialisers and deserialisers."""
