"""Messages with which newcomers may open a chat, held out of training, and a check of the demo model's answers."""
