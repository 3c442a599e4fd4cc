"""The store room: all that clients leave on the server, in one database and a folder of blobs."""
