"""Makes a checkout ready to run: the virtual environment, the packages, and a graphics driver where there is none.

Standard library only, since it runs before anything is installed.
"""
