"""What is asked: settings as keywords, whether each acts, and whether it was answered before."""
