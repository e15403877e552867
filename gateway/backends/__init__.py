"""Where tokens come from. `base` is the seam; one module for each kind of source."""
