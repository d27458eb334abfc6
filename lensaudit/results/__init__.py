"""What runs write and read: typed records, tables, frames and pictures; no torch."""
