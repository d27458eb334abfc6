"""What an outside package may bring, a file each."""
