"""The engine: scheduler, paged KV, runner, sampling, weights and the server in front of them.

`engine.protocol` is what the outside may know; `engine.core` is the step loop and imports
neither torch nor a web framework.
"""
