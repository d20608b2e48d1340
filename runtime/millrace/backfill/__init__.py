"""The engine hosted in Spark executors."""
