"""Records of the earlier parts of conversations: having them written, and keeping them."""
