"""The samples of a run: read, searched, explained and exported, with their pane and dialogs."""
