"""Convert models: write an open model as a file of another format, with other tensor names or weight formats."""
