"""PUBLISH: from a build's files to a folder of pages that opens from disk."""
