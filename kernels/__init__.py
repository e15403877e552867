"""One package per operation: `api` (meaning, validation, choice), `reference` (clear torch).

Importable on a machine without a GPU and without loading torch. Deliberately without a
`__version__`: `transformers` probes a package of this name and must not take it for another.
"""
