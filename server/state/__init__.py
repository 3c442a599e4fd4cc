"""The states that requests start from, and those that answers leave behind under a name."""
