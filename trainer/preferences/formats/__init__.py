"""What each format's rows look like: from a row to a preference, and back."""
