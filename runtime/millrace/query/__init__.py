"""Interactive queries."""
