"""What people prefer: records, the store that keeps them, formats in and out, agreement. Imports no tensor library."""
