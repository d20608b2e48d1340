"""One task, deterministic: time, input and output are passed in."""
