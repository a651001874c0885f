"""Source-neutral transforms."""
