"""Names of the import and export formats of preferences, without the imports that they need."""

FORMATS_IN = ("auto", "trl", "trl-implicit", "hh", "ultrafeedback", "columns", "k-way")
FORMATS_OUT = ("trl", "trl-implicit", "trl-conversational", "kto", "kto-conversational", "columns", "k-way")
