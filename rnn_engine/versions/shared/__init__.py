"""What several versions of RWKV are built from: tensors, sizes, numpy operations and stages."""
