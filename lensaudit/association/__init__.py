"""Which values does a model bind to which subjects, and how many bits does it hold of them?"""
