"""The commands, one module each; the parser of the command line is in `workbench.cli.main`."""
