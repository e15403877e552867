"""Limits of keys, tenants and routes: reserved before a request runs, settled when it has ended."""
