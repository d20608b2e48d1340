"""Kafka Streams applications at work: clients, threads, tasks, restoration."""
