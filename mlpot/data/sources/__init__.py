"""One file a data source; found by module name."""
