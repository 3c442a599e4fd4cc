"""The WGSL of every kernel, as text, and the specialiser that turns a file into a shader module's source."""

from shaders.specialiser import Binding, Constant, Include, ShaderSource, specialise

__all__ = ["Binding", "Constant", "Include", "ShaderSource", "specialise"]
