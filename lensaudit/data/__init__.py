"""What is asked: forget sets, their spans, and the embedded fictional authors."""
