"""Pool files, read row by row and checked."""
