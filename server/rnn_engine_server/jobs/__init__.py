"""Work that outlives a request: the files of clients, and what is made of them."""
