"""What the gateway and the engine say to each other, and what both say to OpenAI clients.

`frames`    the messages of the multiplexed WebSocket
`sampling`  the parameters of one generation, validated
`errors`    the one tree of errors, each with whose fault it is and whether a retry helps
`settings`  the engine's settings, as `fewer.yaml` and the command line spell them
`openai`    OpenAI request bodies in, engine `Generate` frames out
`projection` engine events in, OpenAI chunks and completions out

This package imports no other part of the project.
"""
