"""Text for people: names, numbers, tables, words, and what is hidden from them."""
