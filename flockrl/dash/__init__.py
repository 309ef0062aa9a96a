"""A page about runs, read from the files that they write anyway: training never knows of it. Needs no JAX."""
