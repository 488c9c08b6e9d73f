"""What each command does, one module a command; the grammar of the command line is `workbench.cli.main`."""
