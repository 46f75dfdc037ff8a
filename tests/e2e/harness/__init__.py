"""What the end-to-end tests stand on: RESP by hand, real processes, free ports, waiting for events."""
