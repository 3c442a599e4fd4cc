"""Serve RWKV recurrent language models on any GPU that WebGPU reaches."""
