"""Traits: what a direction is estimated from, and what steering by it changes."""
