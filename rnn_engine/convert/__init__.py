"""Convert models: write an open model in another file format, with other tensor names, or in another weight format."""
