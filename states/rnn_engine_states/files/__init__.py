"""Read, check and write state files: the engine's full-state files, tuned initial states and ai00's prefab files."""
