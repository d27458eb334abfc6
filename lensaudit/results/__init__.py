"""What runs write and read: typed records and tables; no torch."""
