"""The WGSL source files of all kernels, and the function that makes a shader module's source text from them."""

from rnn_engine_shaders.specialiser import Binding, Constant, Include, ShaderSource, specialise

__all__ = ["Binding", "Constant", "Include", "ShaderSource", "specialise"]
