"""Pure decisions about a request. Imports the standard library and msgspec only."""
