"""What users call: one folder per mathematical operation, the same file names in each."""
