"""Run many requests on the slots of one runner: queue, batches, stop matching, text."""

from rnn_engine.scheduler.scheduler import Delivery, Scheduler
from rnn_engine.scheduler.worker import Worker

__all__ = ["Delivery", "Scheduler", "Worker"]
