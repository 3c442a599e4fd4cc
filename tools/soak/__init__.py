"""Mixed traffic against one server for a chosen time: does it grow, slow down, or fail?"""
