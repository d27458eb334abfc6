"""What was thought: the HDF5 store of cached residuals."""
