"""State stores."""
