"""What the gateway and the engine say to each other, and what both say to OpenAI clients.

`frames`    the messages of the multiplexed WebSocket
`sampling`  the parameters of one generation, validated
`errors`    the one tree of errors, each with whose fault it is and whether a retry helps
`settings`  the engine's settings, as `fewer.yaml` and the command line spell them
`openai`    OpenAI request bodies in, engine `Generate` frames out; its parts are `body` (strict
            JSON), `fields`, `messages` and `parameters` (checks), `support` (what we refuse)
`projection` engine events in, OpenAI chunks and completions out; its parts are `collected` (whole
            answers), `shapes` and `sse`
`http`      uvicorn's protocols with limits; the only module here that needs a web server

This package imports no other part of the project.
"""
