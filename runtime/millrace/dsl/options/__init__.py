"""Option objects of the operators, one module per class. All are frozen: `with_*` methods return a changed copy."""
