"""Interface to the system: output, signals, folders, processes, the terminal, trust in code."""
