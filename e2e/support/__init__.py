"""What the end-to-end tests share: an application as its user sees it, and words to count."""
