"""`StreamsReset`: discarding an application's state, once: offsets, internal topics and volumes together."""
