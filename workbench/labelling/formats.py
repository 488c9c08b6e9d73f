"""The formats of preferences in and out, by the names that the user gives them; loads nothing."""

FORMATS_IN = ("auto", "trl", "trl-implicit", "hh", "ultrafeedback", "columns", "k-way")
FORMATS_OUT = ("trl", "trl-implicit", "trl-conversational", "kto", "kto-conversational", "columns", "k-way")
