"""Routing beyond its pure decision: settings, router files, cascades, and training."""
