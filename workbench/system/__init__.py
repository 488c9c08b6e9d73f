"""What the program has to do with the system: output, signals, folders, processes, the terminal, trust in code."""
