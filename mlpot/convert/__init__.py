"""The border with other packages' types."""
