"""Chart SVG on its way into a page: sanitized, cut into panels, made smaller."""
