"""This engine beside others on the same machine: same shapes, same lengths, in turns."""
