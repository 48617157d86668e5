"""The what-if page: the advice in a browser, computed by the same Python code, with or without a server."""
