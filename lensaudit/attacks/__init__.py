"""Can unlearned knowledge be brought back? Attacks on an unlearned model."""
