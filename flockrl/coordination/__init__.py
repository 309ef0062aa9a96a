"""Coordination without learning, by rules with known answers: consensus, leader election, auctions. Needs no JAX."""
