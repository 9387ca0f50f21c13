"""Models from where they lie: looked up, fetched into a cache on this machine, checked. May import core and handlers.

The supervisor fetches, because only it may have a network and credentials; the child gets the path of a file.
"""
