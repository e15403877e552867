"""Pure ASGI middleware, from the outside in: request_id, access_log, CORS (Starlette's), errors,
guard, limits. Settings are in constructors; what is known of a request is in its `Visit`.
"""
