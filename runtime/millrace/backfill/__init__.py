"""The engine hosted in Spark executors.

`run` is a whole backfill: `kafka_history` and `file_history` say what to read, `stages` in which order, and `job` computes it in
Spark. `executor` runs a task on a partition of Spark, with `task_run`, which feeds the engine and leaves what a task sends
to `collector`. `publish` writes the result, with `writer`, or partition by partition with `partition_write`.
"""
