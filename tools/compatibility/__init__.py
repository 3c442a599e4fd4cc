"""What of each system's API is here the same, different or refused: the table behind docs/compatibility.md."""
