"""Executors: `base` is the seam, one module for each way to compute a step."""
