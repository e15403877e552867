"""One decoder for the Llama family; what differs between its members is an option."""
