"""What must last: SQLite on one machine."""
