"""What requests share: answers that were kept, and answers on their way."""
