"""The what-if page: the advice in a browser, by the same Python, with or without a server behind it."""
