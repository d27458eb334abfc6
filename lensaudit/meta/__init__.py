"""Which metric can be trusted? Faithfulness, robustness and aggregates over many models."""
