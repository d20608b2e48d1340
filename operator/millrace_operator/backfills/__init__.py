"""`StreamsBackfill`: an application's state, computed from history by Spark while the application is stopped."""
