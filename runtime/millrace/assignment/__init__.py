"""Task assignors and their wire formats; pure functions."""
