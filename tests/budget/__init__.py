"""What a run of the tests costs: time and processor by file, and the expensive processes that it starts."""
