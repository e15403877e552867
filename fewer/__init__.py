"""The command line: one file a command; every other package is imported when a command needs it."""
