"""The base of the end-to-end tests: a RESP client by hand, real server processes, free ports, and waiting for conditions."""
