"""Parts that several packages use: lists, line views, charts, dialogs, keys, themes."""
