"""Read and write model files, which hold named tensors (safetensors, .pth, GGUF, ...), without torch.

Files are read at positions and never mapped.
"""
