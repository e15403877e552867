"""The server around the engine: the link for gateways, OpenAI endpoints for everybody else.

`app` puts it together; `link` is the multiplexed WebSocket, `completions` the OpenAI endpoints.
"""
