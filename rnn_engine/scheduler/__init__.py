"""Schedule requests on the slots of one runner: queueing, batching, checkpoints, drafts, and the text of answers."""

from rnn_engine.scheduler.drafts import NO_DRAFTS, DraftSettings
from rnn_engine.scheduler.inboxes import Delivery, Inbox, Inboxes
from rnn_engine.scheduler.queue import EAGER, LONGEST_WAIT, BatchingPolicy, parse_policy
from rnn_engine.scheduler.scheduler import Scheduler
from rnn_engine.scheduler.worker import Questions, Worker

__all__ = [
    "EAGER",
    "LONGEST_WAIT",
    "NO_DRAFTS",
    "BatchingPolicy",
    "Delivery",
    "DraftSettings",
    "Inbox",
    "Inboxes",
    "Questions",
    "Scheduler",
    "Worker",
    "parse_policy",
]
