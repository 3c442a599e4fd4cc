"""The forward pass: a model's weights on a device, and the runners that step them."""

from rnn_engine.forward.cpu import CpuRunner
from rnn_engine.forward.forward_pass import Progress
from rnn_engine.forward.gpu_runner import GpuRunner
from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.forward.weight_formats import WeightFormat

__all__ = ["CpuRunner", "GpuRunner", "Progress", "WeightChoice", "WeightFormat"]
