"""A run is started at most once: what is recorded, what may be sent, and the sending."""
