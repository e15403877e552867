"""What came in and what became of it, one line a request: for `fewer replay`. Off unless asked."""
