"""From a build to pages: files in, a site that opens from disk out."""
