"""Matrix products of linear layers, on AMD's processors: PyTorch's BLAS is Intel's, and slower there."""
