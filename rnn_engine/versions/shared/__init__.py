"""Code that several versions of RWKV share: tensor names, sizes, numpy operations, and stages for a device."""
