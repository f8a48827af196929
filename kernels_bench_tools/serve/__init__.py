"""A local web server that rebuilds the report when its sources change."""
