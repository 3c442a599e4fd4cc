"""Reading, checking and writing files with a state: our own files, tuned states and ai00's prefab."""
