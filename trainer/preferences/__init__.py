"""Human preferences: records, their store, formats in and out, agreement. Imports no tensor library."""
