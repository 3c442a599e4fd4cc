"""Files of named tensors, safetensors and .pth, read at positions, without a mapping and without torch."""
