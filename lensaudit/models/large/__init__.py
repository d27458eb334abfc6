"""What does not fit: where weights lie, packed or not, and how blocks are brought in turn."""
