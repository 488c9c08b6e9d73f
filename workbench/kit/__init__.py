"""Parts that several rooms use: lists, line views, charts, dialogs, keys, themes."""
