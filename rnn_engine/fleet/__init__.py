"""Run replicas of an engine on Ray Serve as one engine. Only `deployment` and `cluster` import Ray."""

import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray sends no usage statistics
os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")  # the server handles signals itself
