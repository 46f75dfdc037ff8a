"""What perf/soak is made of.

    clients.py       clients that know what must come of their requests, and count
    disturbances.py  what is done to stores and weirs meanwhile
    watch.py         memory and descriptors of weir, by the second
    verdict.py       whether all was as it must be, and the report
"""
