"""The WGSL of every kernel, and the specialiser that turns a WGSL file into a shader module's source."""

from shaders.specialiser import Binding, Constant, Include, ShaderSource, specialise

__all__ = ["Binding", "Constant", "Include", "ShaderSource", "specialise"]
