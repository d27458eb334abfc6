"""The HDF5 store of cached residual streams."""
