"""Write an open model as a file of another format, with other names, or with other weights."""
