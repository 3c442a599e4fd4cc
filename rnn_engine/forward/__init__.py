"""The forward pass: loads a model's weights onto a device, and defines the runners that execute its steps."""

from rnn_engine.forward.cpu import CpuRunner
from rnn_engine.forward.forward_pass import Progress, no_progress
from rnn_engine.forward.gpu_runner import GpuRunner
from rnn_engine.forward.split_runner import SplitRunner
from rnn_engine.forward.weight_choice import WeightChoice
from rnn_engine.forward.weight_formats import WeightFormat

__all__ = ["CpuRunner", "GpuRunner", "Progress", "SplitRunner", "WeightChoice", "WeightFormat", "no_progress"]
