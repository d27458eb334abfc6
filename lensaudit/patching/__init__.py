"""What happens when thoughts are swapped: oracle, sweep and stages."""
