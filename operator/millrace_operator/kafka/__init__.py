"""Kafka as the operator sees it: what the brokers report about an application, and the changes that a decision makes there."""
