"""Set-up of a checkout: the virtual environment, the packages, and a graphics driver if there is none.

Imports the standard library only, since it runs before anything is installed.
"""
