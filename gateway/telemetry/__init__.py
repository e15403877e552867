"""What the gateway says about itself to machines."""
