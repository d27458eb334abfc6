"""What was audited and what was found: results on disk become one page that needs nothing else."""
