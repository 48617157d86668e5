"""Every key of the engine's configuration: does it change anything, and does the closed form follow?"""
