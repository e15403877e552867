"""What every request was, cost and would have cost. Nothing here is on a request's path."""
