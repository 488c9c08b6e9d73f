"""The commands, one module each: options, action and output. `workbench.cli.main` is the command line."""
