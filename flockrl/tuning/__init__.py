"""Search for settings: a space of them, a search that can be killed, and a confirmation on fresh seeds."""
