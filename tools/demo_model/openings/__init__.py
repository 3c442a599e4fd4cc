"""Messages with which newcomers may open a chat with the demo model, and a check that its answers are sensible.

They are held out of training.
"""
