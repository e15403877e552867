"""What clients see: each face maps its wire format to the internal one. Faces hold no policy."""
