"""Files that hold a state: our own, tuned states, ai00's prefab; read, checked and written."""
