"""The tensors, sizes, numpy operations and stages that several versions of RWKV share."""
