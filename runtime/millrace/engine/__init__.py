"""One task, deterministic: time, input and output are handed in."""
