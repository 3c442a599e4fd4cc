"""Write a model that is open as a file of another format, of other names, or with other weights."""
