"""The gateway: the one process that clients talk to. `gateway.app` does the wiring."""
