"""The Responses API: its bodies as canonical requests, its events, and what is kept of it."""
