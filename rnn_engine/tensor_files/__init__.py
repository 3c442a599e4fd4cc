"""Read and write files of named tensors (safetensors, .pth, GGUF, ...) without mapping them, and without torch."""
