"""Evidence: team metrics, statistics over seeds, benchmarks, reports, and advice on what to try."""
