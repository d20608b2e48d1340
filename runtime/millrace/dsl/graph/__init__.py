"""The logical graph that operators build: what the user wrote, before it is optimised and becomes a topology."""
