"""Run several replicas of an engine on Ray Serve, and represent them as one engine in the server's process.

Only `deployment` and `cluster` import Ray, which reads its settings from the environment when it is imported.
"""

import os

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray sends no usage statistics
os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")  # the server handles signals itself
