"""Model files: reading what is in them, and trusting none of it."""
