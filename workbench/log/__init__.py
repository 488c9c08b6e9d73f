"""The log pane: alerts of the run and the output of libraries."""
