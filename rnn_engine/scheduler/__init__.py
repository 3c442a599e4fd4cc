"""The scheduler, which runs requests on the slots of one runner: queue, batches, checkpoints, drafts and texts."""

from rnn_engine.scheduler.drafts import NO_DRAFTS, DraftSettings
from rnn_engine.scheduler.inboxes import Delivery, Inbox, Inboxes
from rnn_engine.scheduler.scheduler import Scheduler
from rnn_engine.scheduler.worker import Questions, Worker

__all__ = ["NO_DRAFTS", "Delivery", "DraftSettings", "Inbox", "Inboxes", "Questions", "Scheduler", "Worker"]
