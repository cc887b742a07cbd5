"""Analysis of a module's first call: does it treat batch rows independently?"""
